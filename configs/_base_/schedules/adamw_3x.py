# 36 epochs as XCiT's Mask R-CNN; batch 16 = 8 GPUs x 2 images. Difference: the authors trained in
# mixed precision (float16, by apex). Here that is --amp, and the default is float32.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=36, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# As published: everything decays but the layer norms (norm1, norm2, norm3 of each block).
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    paramwise_cfg=dict(custom_keys={'norm': dict(decay_mult=0.)}))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', interval=1, max_keep_ckpts=3))
