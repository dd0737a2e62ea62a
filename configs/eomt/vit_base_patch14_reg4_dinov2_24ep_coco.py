_base_ = '../_base_/eomt_24ep_coco.py'

model = dict(
    backbone=dict(arch='vit_base_patch14_reg4_dinov2', patch_size=16),
    panoptic_head=dict(in_channels=768))
