# Semantic FPN; its FPN is as wide as the backbone.
_base_ = './segmentor.py'

model = dict(
    neck=dict(fpn=dict(type='FPN', num_outs=4)),
    decode_head=dict(
        type='FPNHead',
        in_channels=[384] * 4,
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
