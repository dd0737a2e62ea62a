# Segmenter on ViT-L, 160,000 iterations of ADE20k in 640 pixels, as published with it.
_base_ = [
    './models/segmenter_vit.py', './datasets/ade20k_640.py', './schedules/sgd_160k.py',
    './runtime.py'
]

model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(arch='vit_large_patch16_384', img_size=640),
    decode_head=dict(in_channels=1024, channels=1024, embed_dims=1024, num_heads=16),
    test_cfg=dict(mode='slide', crop_size=(640, 640), stride=(608, 608)))
train_dataloader = dict(batch_size=1)
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
