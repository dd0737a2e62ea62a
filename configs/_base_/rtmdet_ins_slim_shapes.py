# A slim RTMDet-Ins on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/rtmdet_ins_slim.py', './datasets/shapes_instances.py', './schedules/adamw_slim.py',
    './runtime.py'
]

model = dict(bbox_head=dict(num_classes=3))
optim_wrapper = dict(paramwise_cfg=dict(bypass_duplicate=True))  # levels share convolutions
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
