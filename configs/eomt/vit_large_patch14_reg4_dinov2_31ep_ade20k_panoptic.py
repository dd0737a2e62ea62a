_base_ = '../_base_/eomt_31ep_ade20k_panoptic.py'

model = dict(
    backbone=dict(arch='vit_large_patch14_reg4_dinov2', patch_size=16, num_query_blocks=4),
    panoptic_head=dict(in_channels=1024))
