# Cascade Mask R-CNN of ViTDet on MAE's weights. Their files load strictly. Differences in training:
# the authors weigh all stages equally and divide the gradients of their features by three; here,
# stages have mmdet's weights. They have one mask head, mmdet one for each stage.
_base_ = ['./vitdet_mae.py', '../runtime.py']

custom_imports = dict(imports=_base_.custom_imports.imports + ['colonnade.models.cascade_roi_head'])
model = dict(
    type='CascadeRCNN',
    roi_head=dict(
        type='MeanScoreCascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                _base_.model.roi_head.bbox_head,
                bbox_coder=dict(
                    type='DeltaXYWHBBoxCoder',
                    target_means=[0.0, 0.0, 0.0, 0.0],
                    target_stds=[1 / centre, 1 / centre, 2 / centre, 2 / centre]),
                reg_class_agnostic=True) for centre in (10, 20, 30)
        ]),
    train_cfg=dict(rcnn=[
        dict(
            _base_.model.train_cfg.rcnn,
            assigner=dict(
                _base_.model.train_cfg.rcnn.assigner,
                pos_iou_thr=overlap,
                neg_iou_thr=overlap,
                min_pos_iou=overlap)) for overlap in (0.5, 0.6, 0.7)
    ]))
