# ViTDet, 100 epochs of COCO with large-scale jitter. What differs from the authors' is said in
# models/vitdet.py and schedules/adamw_100ep.py.
_base_ = [
    './models/vitdet.py', './datasets/coco_lsj.py', './schedules/adamw_100ep.py', './runtime.py'
]

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
