# Mask2Former for instances (arXiv 2112.01527). The head and its training are those of mmdet's
# mask2former_r50_8xb2-lsj-50e_coco.
_base_ = './mask2former_head.py'

default_scope = 'mmdet'
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
things = dict(num_things_classes=80, num_stuff_classes=0)

model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=32),
    backbone=dict(type='XCiT', arch='small_12_p16', drop_path_rate=0.05),
    neck=dict(type='ColumnarPyramid', in_channels=384, stride=16),
    panoptic_head=dict(
        _base_.head,
        **things,
        strides=[4, 8, 16, 32],
        loss_cls=dict(_base_.head.loss_cls, class_weight=[1.0] * 80 + [_base_.no_object])),
    panoptic_fusion_head=dict(type='MaskFormerFusionHead', **things, loss_panoptic=None),
    train_cfg=_base_.matching,
    test_cfg=dict(
        panoptic_on=False,
        semantic_on=False,
        instance_on=True,
        max_per_image=100,
        iou_thr=0.8,
        filter_low_score=True))
