# 12 epochs as DINO (arXiv 2203.03605); batch 16 = 8 GPUs x 2 images.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4, fused=True),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1)}),
    clip_grad=dict(max_norm=0.1))
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[11], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3))
