# EoMT small enough to train on two CPU cores.
_base_ = './eomt.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=32),
    backbone=dict(arch='vit_tiny_patch16_224'),
    panoptic_head=dict(in_channels=192, num_queries=20),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20))
