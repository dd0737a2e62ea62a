# A slim UperNet on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/upernet_slim.py', './datasets/shapes_semantic.py', './schedules/adamw_slim.py',
    './runtime.py'
]

model = dict(decode_head=dict(num_classes=4), auxiliary_head=dict(num_classes=4))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
