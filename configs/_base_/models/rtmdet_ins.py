# RTMDet-Ins-L (arXiv 2212.07784) on another backbone: strides 8, 16 and 32 from three blocks. Neck
# and head are those of mmdet's rtmdet-ins_l_8xb32-300e_coco.
default_scope = 'mmdet'
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])

model = dict(
    type='RTMDet',
    use_syncbn=False,  # the runner synchronizes norms
    # RGB, as the backbones' weights need. The neck doubles and halves levels: sizes must be even.
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=32),
    backbone=dict(type='XCiT', arch='small_12_p16', out_indices=(5, 7, 11), drop_path_rate=0.05),
    neck=dict(
        type='ColumnarPyramid',
        in_channels=384,
        stride=16,
        out_strides=[8, 16, 32],
        fpn=dict(
            type='CSPNeXtPAFPN',
            out_channels=256,
            num_csp_blocks=3,
            expand_ratio=0.5,
            norm_cfg=dict(type='BN'),
            act_cfg=dict(type='SiLU', inplace=True))),
    bbox_head=dict(
        type='RTMDetInsSepBNHead',
        num_classes=80,
        in_channels=256,
        stacked_convs=2,
        share_conv=True,
        pred_kernel_size=1,
        feat_channels=256,
        act_cfg=dict(type='SiLU', inplace=True),
        norm_cfg=dict(type='BN'),
        anchor_generator=dict(type='MlvlPointGenerator', offset=0, strides=[8, 16, 32]),
        bbox_coder=dict(type='DistancePointBBoxCoder'),
        loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2.0, loss_weight=1.0),
        loss_bbox=dict(type='GIoULoss', loss_weight=2.0),
        loss_mask=dict(type='DiceLoss', loss_weight=2.0, eps=5e-6, reduction='mean')),
    train_cfg=dict(
        assigner=dict(type='DynamicSoftLabelAssigner', topk=13),
        allowed_border=-1,
        pos_weight=-1,
        debug=False),
    test_cfg=dict(
        nms_pre=1000,
        min_bbox_size=0,
        score_thr=0.05,
        nms=dict(type='nms', iou_threshold=0.6),
        max_per_img=100,
        mask_thr_binary=0.5))
