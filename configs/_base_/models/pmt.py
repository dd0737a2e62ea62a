# PMT, the Plain Mask Transformer (arXiv 2603.25398), for instances. The backbone is frozen: set
# frozen_stages to the number of blocks, or to -1 to train it too.
_base_ = '../runtime.py'

custom_imports = dict(imports=_base_.custom_imports.imports + ['colonnade.heads'])
default_scope = 'mmdet'
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
classes = dict(num_things_classes=80, num_stuff_classes=0)

model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=640),
    backbone=dict(type='XCiT', arch='small_12_p16', drop_path_rate=0.0, frozen_stages=12),
    neck=None,
    panoptic_head=dict(
        type='PMTHead',
        in_channels=384,
        num_queries=200,
        num_blocks=6,
        norm_cfg=dict(type='BN'),
        **classes),
    panoptic_fusion_head=dict(type='MaskFormerFusionHead', loss_panoptic=None, **classes),
    train_cfg=dict(num_points=12544),
    test_cfg=dict(
        panoptic_on=False, instance_on=True, max_per_image=100, iou_thr=0.8, filter_low_score=True))
custom_hooks = [dict(type='MaskAnnealingHook')]
