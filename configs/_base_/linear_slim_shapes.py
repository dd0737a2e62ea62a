# A linear head on synthetic shapes, for machines without a GPU; the backbone is trained too.
_base_ = ['./models/linear_slim.py', './datasets/shapes_semantic.py', './schedules/adamw_slim.py']

model = dict(decode_head=dict(num_classes=4))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
