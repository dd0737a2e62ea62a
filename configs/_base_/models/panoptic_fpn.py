# Panoptic FPN on XCiT-S12/16.
_base_ = ['./mask_rcnn.py', './panoptic_fpn_head.py']

model = _base_.panoptic_fpn
