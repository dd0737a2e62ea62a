# 100 epochs as ViTDet (arXiv 2203.16527, appendix A.2); batch 64 = 32 GPUs x 2 images. Differences:
# the authors trained in mixed precision, which is --amp here. Their norms and positions do not
# decay, and biases do. Here, no vector decays, as in mmdet's ViTDet. They lower the rate after
# 163,889 and 177,546 of 184,375 iterations, which are 88.9 and 96.3 epochs.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=100, val_interval=5)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.1, fused=True),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7, flat_decay_mult=0.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=100, milestones=[89, 96], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=64)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', interval=5, max_keep_ckpts=3))
