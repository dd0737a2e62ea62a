# SETR, progressive upsampling, 160,000 iterations of ADE20k.
_base_ = [
    './models/setr_pup.py', './datasets/ade20k.py', './schedules/sgd_160k_setr.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
