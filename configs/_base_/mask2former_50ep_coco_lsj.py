# Mask2Former for instances, 50 epochs of COCO with large-scale jitter.
_base_ = [
    './models/mask2former.py', './datasets/coco_lsj.py', './schedules/adamw_50ep.py', './runtime.py'
]

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))  # the schedule counts iterations
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
