# UperNet on MAE, 160,000 iterations of ADE20k.
_base_ = [
    './models/upernet_beit.py', './datasets/ade20k.py', './schedules/adamw_160k.py', './runtime.py'
]

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(arch=dict(pos_embed='learn', init_values=1.), img_size=512, rel_pos_size=32),
    test_cfg=dict(crop_size=(512, 512), stride=(341, 341)))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
