_base_ = '../_base_/mask2former_50ep_coco_panoptic.py'

model = dict(
    backbone=dict(type='PlainViT', arch='deit3_base_patch16_224', drop_path_rate=0.1),
    neck=dict(in_channels=768),
    panoptic_head=dict(in_channels=[768] * 4))
