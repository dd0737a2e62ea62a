# SegFormer's head, 160,000 iterations of ADE20k, as published with it: the head learns ten times as
# fast as the rest. The key 'pos_block' of mmseg's config is omitted: no backbone here has one.
_base_ = [
    './models/segformer.py', './datasets/ade20k.py', './schedules/adamw_160k.py', './runtime.py'
]

optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'head': dict(lr_mult=10.)}))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
