# Mask2Former (arXiv 2112.01527) for semantic segmentation, as mmseg's mask2former_r50.
_base_ = ['./segmentor.py', './mask2former_head.py', '../runtime.py']

custom_imports = dict(imports=_base_.custom_imports.imports + ['mmdet.models'])

model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=32)),
    decode_head=dict(
        _base_.head,
        num_classes=150,
        align_corners=False,
        loss_cls=dict(_base_.head.loss_cls, class_weight=[1.0] * 150 + [_base_.no_object]),
        train_cfg=_base_.matching))
