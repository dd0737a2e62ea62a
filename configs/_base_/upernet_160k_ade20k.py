# UperNet, 160,000 iterations of ADE20k, as published with XCiT.
_base_ = [
    './models/upernet.py', './datasets/ade20k.py', './schedules/adamw_160k.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
