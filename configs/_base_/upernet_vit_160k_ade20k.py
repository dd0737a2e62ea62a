# UperNet on a ViT, 160,000 iterations of ADE20k.
_base_ = [
    './models/upernet_vit.py', './datasets/ade20k.py', './schedules/adamw_160k.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
