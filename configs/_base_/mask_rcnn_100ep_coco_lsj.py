# Mask R-CNN, 100 epochs of COCO with large-scale jitter, as ViTDet trains.
_base_ = [
    './models/mask_rcnn.py', './datasets/coco_lsj.py', './schedules/adamw_100ep.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
