# DINO of four scales, 12 epochs of COCO's boxes. Difference: images are padded to multiples of 32,
# so that all levels cover the same pixels.
_base_ = [
    './models/dino.py', './datasets/coco_detr.py', './schedules/adamw_12ep.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
