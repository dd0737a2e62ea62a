_base_ = './adamw_80k.py'

train_cfg = dict(max_iters=160000, val_interval=16000)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=160000),
]
default_hooks = dict(checkpoint=dict(interval=16000))
