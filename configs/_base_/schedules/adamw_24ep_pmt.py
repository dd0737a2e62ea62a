# 24 epochs as PMT (arXiv 2603.25398) for S and B; batch 16 = 8 GPUs x 2 images. All decays.
_base_ = './adamw_12ep.py'

train_cfg = dict(max_epochs=24)
optim_wrapper = dict(
    optimizer=dict(lr=2e-4, weight_decay=0.05), paramwise_cfg=None, clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=6000),
    dict(
        type='CosineAnnealingLR',
        eta_min=0.,
        by_epoch=True,
        begin=0,
        end=24,
        convert_to_iter_based=True),
]
