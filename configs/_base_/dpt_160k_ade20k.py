# DPT, 160,000 iterations of ADE20k.
_base_ = ['./models/dpt.py', './datasets/ade20k.py', './schedules/adamw_160k.py', './runtime.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
