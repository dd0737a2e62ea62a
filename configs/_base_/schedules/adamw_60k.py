# 60,000 iterations of 128 images, as the authors train EVA-02's detectors: all vectors decay, too.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=60000, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-5, betas=(0.9, 0.999), weight_decay=0.1, fused=True),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7, flat_decay_mult=1.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR',
        by_epoch=False,
        begin=0,
        end=60000,
        milestones=[48000, 54000],
        gamma=0.1),
]
log_processor = dict(by_epoch=False)
auto_scale_lr = dict(enable=False, base_batch_size=128)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=5000, max_keep_ckpts=3))
