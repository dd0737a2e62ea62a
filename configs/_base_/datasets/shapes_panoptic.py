# tools/make_shapes.py, COCO layout: three classes of shapes, and the background.
import os

_base_ = './coco_panoptic.py'

data_root = (os.environ.get('COLONNADE_SHAPES') or 'data/shapes') + '/coco'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'background'),
    thing_classes=('disc', 'square', 'triangle'),
    stuff_classes=('background', ),
    palette=[(220, 60, 60), (60, 180, 75), (60, 90, 220), (120, 120, 120)])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    _base_.load_segments,
    dict(type='RandomFlip', prob=0.5, direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(step, scale=(128, 128)) if step.type == 'Resize' else step for step in _base_.test_pipeline
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    sampler=dict(type='InfiniteSampler'),  # the schedule counts iterations
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(min_size=16),
        pipeline=train_pipeline))
val_dataloader = dict(
    num_workers=1, dataset=dict(data_root=data_root, metainfo=metainfo, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    ann_file=data_root + '/annotations/panoptic_val2017.json',
    seg_prefix=data_root + '/annotations/panoptic_val2017/')
test_evaluator = val_evaluator

num_classes = dict(num_things_classes=3, num_stuff_classes=1)
panoptic = dict(panoptic_head=num_classes, panoptic_fusion_head=num_classes)
