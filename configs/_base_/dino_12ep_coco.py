# DINO of four scales, 12 epochs of COCO's boxes.
_base_ = [
    './models/dino.py', './datasets/coco_detr.py', './schedules/adamw_12ep.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
