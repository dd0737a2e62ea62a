# Faster R-CNN, 36 epochs of COCO's boxes, trained as Mask R-CNN.
_base_ = [
    './models/faster_rcnn.py', './datasets/coco_boxes.py', './schedules/adamw_3x.py', './runtime.py'
]

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
