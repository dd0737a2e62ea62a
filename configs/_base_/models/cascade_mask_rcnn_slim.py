# Cascade Mask R-CNN small enough to train on two CPU cores: as mask_rcnn_slim.py, in each stage.
_base_ = './cascade_mask_rcnn.py'

model = dict(
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128, fpn=dict(out_channels=64)),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=[
            dict(stage, in_channels=64, fc_out_channels=256)
            for stage in _base_.model.roi_head.bbox_head
        ],
        mask_roi_extractor=dict(out_channels=64),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=500, max_per_img=100),
        rcnn=[
            dict(stage, sampler=dict(stage.sampler, num=64))
            for stage in _base_.model.train_cfg.rcnn
        ]),
    test_cfg=dict(rpn=dict(nms_pre=500, max_per_img=100)))
