_base_ = '../_base_/mask2former_50ep_coco_panoptic.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=1036),
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[3.5, 7, 14, 28]),
    panoptic_head=dict(strides=[3.5, 7, 14, 28]))
