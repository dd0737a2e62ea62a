# 300 epochs as RTMDet (arXiv 2212.07784); batch 256 = 8 GPUs x 32 images. The last 20 epochs, on
# unaugmented images, are evaluated one by one. Differences: the learning rate is half of that of
# its convolutional backbone, since mmdet's RTMDet on Swin-B has 0.001 for a batch of 128.
# Published, norms and biases do not decay. Here, no vector does, since LayerScale is a vector too.
train_cfg = dict(
    type='EpochBasedTrainLoop', max_epochs=300, val_interval=10, dynamic_intervals=[(280, 1)])
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# Levels of the head share convolutions.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(flat_decay_mult=0., bypass_duplicate=True))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-5, by_epoch=False, begin=0, end=1000),
    dict(
        type='CosineAnnealingLR',
        eta_min=1e-4,
        by_epoch=True,
        begin=150,
        end=300,
        T_max=150,
        convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=256)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(type='CheckpointHook', interval=10, max_keep_ckpts=3))
