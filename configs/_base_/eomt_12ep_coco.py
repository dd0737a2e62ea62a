# EoMT for instances, 12 epochs of COCO at 640 x 640. Differences: published, training is in mixed
# precision, which is --amp here, and images are padded with black; here with the mean color.
_base_ = ['./models/eomt.py', './datasets/coco_640.py', './schedules/adamw_12ep_eomt.py']

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
