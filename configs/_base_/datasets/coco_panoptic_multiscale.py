# COCO 2017 panoptic segments with DETR's multi-scale and crop augmentation, see coco.py.
_base_ = './coco_panoptic.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    _base_.load_segments,
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[[_base_.resize], [_base_.shrink, _base_.crop, _base_.resize]]),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(step, scale=(1333, 800)) if step.type == 'Resize' else step
    for step in _base_.test_pipeline
]
train_dataloader = dict(
    batch_sampler=dict(_delete_=True, type='AspectRatioBatchSampler'),
    dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
