# DINOv2's linear evaluation (arXiv 2304.07193, section 7.4): the backbone is frozen, a linear layer
# classifies the tokens of its last block. Set frozen_stages to the number of blocks. The authors'
# heads load as init_cfg of decode_head.
_base_ = ['./segmentor.py', '../runtime.py']

custom_imports = dict(imports=_base_.custom_imports.imports + ['colonnade.heads'])
model = dict(
    backbone=dict(out_indices=[-1], drop_path_rate=0.0, frozen_stages=12),
    neck=None,
    decode_head=dict(
        type='LinearHead',
        in_channels=384,
        num_classes=150,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
