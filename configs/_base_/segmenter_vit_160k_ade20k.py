# Segmenter on a ViT, 160,000 iterations of ADE20k, as published with it.
_base_ = [
    './models/segmenter_vit.py', './datasets/ade20k.py', './schedules/sgd_160k.py', './runtime.py'
]

train_dataloader = dict(batch_size=1)
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
