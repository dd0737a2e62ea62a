# A slim Mask2Former on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/mask2former_slim.py', './datasets/shapes_instances.py',
    './schedules/adamw_slim_queries.py', './runtime.py'
]

model = dict(
    panoptic_head=dict(num_things_classes=3, loss_cls=dict(class_weight=[1.0] * 3 + [0.1])),
    panoptic_fusion_head=dict(num_things_classes=3))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
