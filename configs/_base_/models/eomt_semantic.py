# EoMT (arXiv 2503.19108) for semantic segmentation, see eomt.py. As published, the short side of
# test images is 512, and windows follow each other along the long side.
_base_ = ['./segmentor.py', '../runtime.py']

custom_imports = dict(imports=_base_.custom_imports.imports + ['mmdet.models', 'colonnade.heads'])
model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch='vit_small_patch16_dinov3',
        img_size=512,
        drop_path_rate=0.0,
        norm_features=True,
        num_query_blocks=3),
    neck=None,
    decode_head=dict(
        type='SemanticEoMTHead',
        in_channels=384,
        num_classes=150,
        num_queries=100,
        align_corners=False,
        train_cfg=dict(num_points=12544)),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(512, 512)))
custom_hooks = [dict(type='MaskAnnealingHook')]
