# A slim DINO on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/dino_slim.py', './datasets/shapes_boxes.py', './schedules/adamw_slim_queries.py',
    './runtime.py'
]

model = dict(bbox_head=dict(num_classes=3))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
