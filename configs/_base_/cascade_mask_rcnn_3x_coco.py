# Cascade Mask R-CNN, 36 epochs of COCO, trained as Mask R-CNN.
_base_ = [
    './models/cascade_mask_rcnn.py', './datasets/coco.py', './schedules/adamw_3x.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
