_base_ = '../_base_/eomt_semantic_31ep_ade20k.py'

model = dict(
    backbone=dict(arch='vit_large_patch14_reg4_dinov2', patch_size=16, num_query_blocks=4),
    decode_head=dict(in_channels=1024))
