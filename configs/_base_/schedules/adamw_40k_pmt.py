# 40,000 iterations as PMT (arXiv 2603.25398), about 31 epochs of batch 16. All decays.
_base_ = './adamw_40k.py'

optim_wrapper = dict(optimizer=dict(lr=2e-4, weight_decay=0.05), clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=6000),
    dict(type='CosineAnnealingLR', eta_min=0., by_epoch=False, begin=0, end=40000),
]
