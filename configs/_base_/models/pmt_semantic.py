# PMT (arXiv 2603.25398) for semantic segmentation, see pmt.py.
_base_ = ['./segmentor.py', '../runtime.py']

custom_imports = dict(imports=_base_.custom_imports.imports + ['mmdet.models', 'colonnade.heads'])
model = dict(
    backbone=dict(drop_path_rate=0.0, frozen_stages=12),
    neck=None,
    decode_head=dict(
        type='SemanticPMTHead',
        in_channels=384,
        num_classes=150,
        num_queries=100,
        num_blocks=6,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        train_cfg=dict(num_points=12544)),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
custom_hooks = [dict(type='MaskAnnealingHook')]
