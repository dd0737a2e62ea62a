# What Panoptic FPN (arXiv 1901.02446) adds to Mask R-CNN: a head of stuff on the same FPN. Heads
# and their training are those of mmdet's panoptic-fpn_r50_fpn.
classes = dict(num_things_classes=80, num_stuff_classes=53)

panoptic_fpn = dict(
    type='PanopticFPN',
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    semantic_head=dict(
        type='PanopticFPNHead',
        in_channels=256,
        inner_channels=128,
        norm_cfg=dict(type='GN', num_groups=32),
        loss_seg=dict(type='CrossEntropyLoss', ignore_index=255, loss_weight=0.5),
        **classes),
    panoptic_fusion_head=dict(type='HeuristicFusionHead', **classes),
    test_cfg=dict(
        rcnn=dict(score_thr=0.6, nms=dict(class_agnostic=True)),
        panoptic=dict(mask_overlap=0.5, stuff_area_limit=4096)))
