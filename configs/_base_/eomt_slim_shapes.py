# A slim EoMT on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/eomt_slim.py', './datasets/shapes_instances.py', './schedules/adamw_slim_queries.py'
]

model = dict(
    panoptic_head=dict(num_things_classes=3), panoptic_fusion_head=dict(num_things_classes=3))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
