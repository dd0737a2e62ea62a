# EoMT for semantic segmentation, 31 epochs of ADE20k. Differences: published, training is in mixed
# precision, which is --amp here; windows of long images are evenly spaced, here the last overlaps.
_base_ = ['./models/eomt_semantic.py', './datasets/ade20k.py', './schedules/adamw_31ep_eomt.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
