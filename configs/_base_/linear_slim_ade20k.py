# A linear head on ADE20k at small size, for machines without a GPU; the backbone is trained too.
_base_ = ['./models/linear_slim.py', './datasets/ade20k_slim.py', './schedules/adamw_slim.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
