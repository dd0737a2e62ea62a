# A slim DINO on COCO at small size, for machines without a GPU.
_base_ = [
    './models/dino_slim.py', './datasets/coco_slim_boxes.py', './schedules/adamw_slim_queries.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
