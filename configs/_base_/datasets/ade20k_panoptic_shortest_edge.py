# ADE20k panoptic segments as Mask2Former trains on them: the short side has 320 to 1280 pixels.
_base_ = './ade20k_panoptic.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    _base_.load_segments,
    dict(
        type='RandomChoiceResize',
        scales=[(64 * tenths, 2560) for tenths in range(5, 21)],
        keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=(640, 640),
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(step, scale=(2560, 640)) if step.type == 'Resize' else step
    for step in _base_.test_pipeline
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
