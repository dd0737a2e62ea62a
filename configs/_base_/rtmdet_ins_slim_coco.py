# A slim RTMDet-Ins on COCO at small size, for machines without a GPU.
_base_ = [
    './models/rtmdet_ins_slim.py', './datasets/coco_slim.py', './schedules/adamw_slim.py',
    './runtime.py'
]

optim_wrapper = dict(paramwise_cfg=dict(bypass_duplicate=True))  # levels share convolutions
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
