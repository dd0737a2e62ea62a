# EoMT for semantic segmentation small enough to train on two CPU cores.
_base_ = './eomt_semantic.py'

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(arch='vit_tiny_patch16_224'),
    decode_head=dict(in_channels=192, num_queries=20, train_cfg=dict(num_points=1024)),
    test_cfg=dict(mode='whole', crop_size=None, stride=None))
