_base_ = '../_base_/mask2former_semantic_160k_ade20k.py'

model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=28)),
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[3.5, 7, 14, 28]))
