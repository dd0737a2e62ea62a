_base_ = './vit_small_patch14_dinov2_50ep_coco_panoptic.py'

model = dict(
    backbone=dict(arch='vit_base_patch14_dinov2'),
    neck=dict(in_channels=768),
    panoptic_head=dict(in_channels=[768] * 4))
