# A slim Mask2Former on COCO at small size, for machines without a GPU.
_base_ = [
    './models/mask2former_slim.py', './datasets/coco_slim.py', './schedules/adamw_slim_queries.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
