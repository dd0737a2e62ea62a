# 50 epochs of COCO in iterations, as Mask2Former (arXiv 2112.01527); batch 16 = 8 GPUs x 2 images.
# Difference: published, norms and embeddings do not decay. Nor do other vectors here: a backbone's
# LayerScale and positions are learned like these.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=368750, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05, fused=True),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(
        flat_decay_mult=0.,
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            'query_embed': dict(decay_mult=0.),
            'query_feat': dict(decay_mult=0.),
            'level_embed': dict(decay_mult=0.),
            'level_encoding': dict(decay_mult=0.),
        }),
    clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(
        type='MultiStepLR',
        by_epoch=False,
        begin=0,
        end=368750,
        milestones=[327778, 355092],
        gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=5000, max_keep_ckpts=3))
