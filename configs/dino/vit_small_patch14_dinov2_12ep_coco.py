_base_ = '../_base_/dino_12ep_coco.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=28),
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[7, 14, 28]))
