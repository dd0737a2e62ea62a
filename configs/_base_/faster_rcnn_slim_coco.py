# A slim Faster R-CNN on COCO at small size, for machines without a GPU.
_base_ = [
    './models/faster_rcnn_slim.py', './datasets/coco_slim_boxes.py', './schedules/adamw_slim.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
