# A slim Cascade Mask R-CNN on COCO at small size, for machines without a GPU.
_base_ = [
    './models/cascade_mask_rcnn_slim.py', './datasets/coco_slim.py', './schedules/adamw_slim.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
