# ViTDet on MAE's weights. Differences from the authors' recipe: see models/vitdet.py and
# schedules/adamw_75ep.py.
_base_ = [
    './models/vitdet_mae.py', './datasets/coco_lsj.py', './schedules/adamw_75ep.py', './runtime.py'
]

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
