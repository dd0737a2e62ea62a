# Semantic FPN, 80,000 iterations of ADE20k, as published with XCiT.
_base_ = ['./models/sem_fpn.py', './datasets/ade20k.py', './schedules/adamw_80k.py', './runtime.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
