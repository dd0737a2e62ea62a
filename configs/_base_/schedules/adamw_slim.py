# A few minutes on two CPU cores, batch 8.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=500, val_interval=500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}),
    clip_grad=dict(max_norm=10.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=0., by_epoch=False, begin=0, end=500),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=10, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=250, max_keep_ckpts=2))
