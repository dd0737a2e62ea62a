# Cascade ViTDet on EVA-02 weights. Differences from the authors' recipe: see
# models/cascade_vitdet_eva02.py, models/vitdet.py and schedules/adamw_60k.py.
_base_ = ['./models/cascade_vitdet_eva02.py', './datasets/coco_lsj.py', './schedules/adamw_60k.py']

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
