# UperNet on BEiT, 160,000 iterations of ADE20k in 640 pixels.
_base_ = [
    './models/upernet_beit.py', './datasets/ade20k_640.py', './schedules/adamw_160k.py',
    './runtime.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
