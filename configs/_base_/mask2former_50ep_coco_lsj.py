# Mask2Former for instances, 50 epochs of COCO with large-scale jitter. Differences: tests pad to
# 1024 x 1024 and do not resize to 800 x 1333, since a backbone's positions depend on the size. For
# weight decay, see schedules/adamw_50ep.py.
_base_ = [
    './models/mask2former.py', './datasets/coco_lsj.py', './schedules/adamw_50ep.py', './runtime.py'
]

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))  # the schedule counts iterations
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
