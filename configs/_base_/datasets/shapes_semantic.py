# tools/make_shapes.py, ADE20k layout: three classes and the background on 128 x 128 images.
import os

_base_ = './ade20k_slim.py'

data_root = (os.environ.get('COLONNADE_SHAPES') or 'data/shapes') + '/ade'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=(512, 128), keep_ratio=True),  # as in evaluation
    dict(type='RandomCrop', crop_size=(128, 128)),  # for own images that are not square
    dict(type='RandomFlip', prob=0.5, direction=['horizontal', 'vertical']),
    dict(type='PackSegInputs'),
]
dataset = dict(
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=dict(
        classes=('background', 'disc', 'square', 'triangle'),
        palette=[(120, 120, 120), (220, 60, 60), (60, 180, 75), (60, 90, 220)]),
    img_suffix='.jpg',
    seg_map_suffix='.png',
    reduce_zero_label=True)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **dataset))
val_dataloader = dict(dataset=dataset)
test_dataloader = val_dataloader
