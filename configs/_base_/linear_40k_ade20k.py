# A linear head on a frozen backbone, 40,000 iterations of ADE20k, as DINOv2 evaluates.
_base_ = ['./models/linear.py', './datasets/ade20k.py', './schedules/adamw_40k.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
