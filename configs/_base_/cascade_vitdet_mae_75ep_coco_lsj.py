# Cascade ViTDet on MAE's weights. Differences from the authors' recipe: see
# models/cascade_vitdet_mae.py, models/vitdet.py and schedules/adamw_75ep.py.
_base_ = ['./models/cascade_vitdet_mae.py', './datasets/coco_lsj.py', './schedules/adamw_75ep.py']

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
