# 40,000 iterations as DINOv2's linear evaluation; everything that is trained decays.
_base_ = './adamw_80k.py'

train_cfg = dict(max_iters=40000, val_interval=4000)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-4), paramwise_cfg=None)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=40000),
]
default_hooks = dict(checkpoint=dict(interval=4000))
