# Cascade Mask R-CNN (arXiv 1906.09756): three stages of boxes, each stricter than the one before.
# Its training is that of mmdet's cascade-mask-rcnn_r50_fpn.
_base_ = './mask_rcnn.py'

model = dict(
    type='CascadeRCNN',
    rpn_head=dict(loss_bbox=dict(type='SmoothL1Loss', beta=1 / 9)),
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                _base_.model.roi_head.bbox_head,
                bbox_coder=dict(
                    type='DeltaXYWHBBoxCoder',
                    target_means=[0.0, 0.0, 0.0, 0.0],
                    target_stds=[centre, centre, size, size]),
                reg_class_agnostic=True,
                loss_bbox=dict(type='SmoothL1Loss', beta=1.0, loss_weight=1.0))
            for centre, size in ((0.1, 0.2), (0.05, 0.1), (0.033, 0.067))
        ]),
    train_cfg=dict(
        rpn=dict(allowed_border=0),
        rpn_proposal=dict(max_per_img=2000),
        rcnn=[
            dict(
                _base_.model.train_cfg.rcnn,
                assigner=dict(
                    type='MaxIoUAssigner',
                    pos_iou_thr=overlap,
                    neg_iou_thr=overlap,
                    min_pos_iou=overlap,
                    match_low_quality=False,
                    ignore_iof_thr=-1)) for overlap in (0.5, 0.6, 0.7)
        ]))
