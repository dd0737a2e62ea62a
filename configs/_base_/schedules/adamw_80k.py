# 80,000 iterations; batch 16 = 8 GPUs x 2 images.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# As published: everything decays but the layer norms (norm1, norm2, norm3 of each block).
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01, fused=True),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}))
# Both act from the start, as in mmcv 1: the warm-up multiplies a rate that already falls.
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=80000),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=8000, max_keep_ckpts=3))
