# Panoptic FPN small enough to train on two CPU cores.
_base_ = ['./mask_rcnn_slim.py', './panoptic_fpn_head.py']

model = dict(
    _base_.panoptic_fpn,
    semantic_head=dict(_base_.panoptic_fpn.semantic_head, in_channels=64, inner_channels=64),
    test_cfg=dict(
        _base_.panoptic_fpn.test_cfg, panoptic=dict(mask_overlap=0.5, stuff_area_limit=64)))
