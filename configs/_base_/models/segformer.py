# SegFormer's all-MLP head (arXiv 2105.15203), as mmseg's segformer_mit-b0.
_base_ = './segmentor.py'

model = dict(
    decode_head=dict(
        type='SegformerHead',
        in_channels=[384] * 4,
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
