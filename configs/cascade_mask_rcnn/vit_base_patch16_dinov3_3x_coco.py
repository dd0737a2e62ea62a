_base_ = '../_base_/cascade_mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_base_patch16_dinov3', drop_path_rate=0.1),
    neck=dict(in_channels=768))
