# Mask R-CNN, 36 epochs of COCO, as published with XCiT. Difference: the authors trained in mixed
# precision, which is --amp here.
_base_ = ['./models/mask_rcnn.py', './datasets/coco.py', './schedules/adamw_3x.py', './runtime.py']

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
