# COCO 2017 instances as RTMDet trains (arXiv 2212.07784, section 3.4): cached mosaics and mixtures
# at 640 x 640. Masks stay polygons, which is fast; objects whose mask is an RLE are ignored.
_base_ = './coco.py'

load_polygons = dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=False)
crop = dict(type='RandomCrop', crop_size=(640, 640), recompute_bbox=True, allow_negative_crop=True)
pad = dict(type='Pad', size=(640, 640), pad_val=dict(img=(114, 114, 114)))
drop_empty = dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1))

train_pipeline = [
    dict(type='LoadImageFromFile'),
    load_polygons,
    dict(type='CachedMosaic', img_scale=(640, 640), pad_val=114.0),
    dict(type='RandomResize', scale=(1280, 1280), ratio_range=(0.1, 2.0), keep_ratio=True),
    crop,
    dict(type='YOLOXHSVRandomAug'),
    dict(type='RandomFlip', prob=0.5),
    pad,
    dict(
        type='CachedMixUp',
        img_scale=(640, 640),
        ratio_range=(1.0, 1.0),
        max_cached_images=20,
        pad_val=(114, 114, 114)),
    drop_empty,
    dict(type='PackDetInputs'),
]
# pipeline of the last epochs, without mosaics
plain_pipeline = [
    dict(type='LoadImageFromFile'),
    load_polygons,
    dict(type='RandomResize', scale=(640, 640), ratio_range=(0.1, 2.0), keep_ratio=True),
    crop,
    drop_empty,
    dict(type='YOLOXHSVRandomAug'),
    dict(type='RandomFlip', prob=0.5),
    pad,
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(640, 640), keep_ratio=True),
    pad,
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=32,
    num_workers=10,
    pin_memory=True,
    batch_sampler=None,
    dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
