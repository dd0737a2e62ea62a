# COCO 2017 panoptic segments with large-scale jitter, see coco_640.py.
_base_ = './coco.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadPanopticSegments', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=(640, 640), ratio_range=(0.1, 2.0), keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_type='absolute',
        crop_size=(640, 640),
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(640, 640), keep_ratio=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_sampler=None,
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(img='train2017/', seg='annotations/panoptic_train2017/'),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(img='val2017/', seg='annotations/panoptic_val2017/'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='PanopticQuality',
    ann_file=_base_.data_root + '/annotations/panoptic_val2017.json',
    seg_prefix=_base_.data_root + '/annotations/panoptic_val2017/')
test_evaluator = val_evaluator
