# As adamw_slim.py, for heads of queries: they learn more slowly, and need smaller steps.
_base_ = './adamw_slim.py'

train_cfg = dict(max_iters=750, val_interval=750)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=75),
    dict(type='CosineAnnealingLR', eta_min=0., by_epoch=False, begin=0, end=750),
]
