# SegFormer's slim head on ADE20k at small size, for machines without a GPU.
_base_ = [
    './models/segformer_slim.py', './datasets/ade20k_slim.py', './schedules/adamw_slim.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
