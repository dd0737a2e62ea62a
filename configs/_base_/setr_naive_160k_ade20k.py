# SETR, naive upsampling, 160,000 iterations of ADE20k.
_base_ = [
    './models/setr_naive.py', './datasets/ade20k.py', './schedules/sgd_160k_setr.py', './runtime.py'
]

optim_wrapper = dict(optimizer=dict(lr=0.01))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
