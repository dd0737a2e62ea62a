_base_ = '../_base_/mask_rcnn_3x_coco.py'

# images in [-1, 1]
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=dict(type='PlainViT', arch='vit_base_patch16_siglip_512', drop_path_rate=0.1),
    neck=dict(in_channels=768))
