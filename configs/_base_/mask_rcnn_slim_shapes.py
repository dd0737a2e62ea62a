# A slim Mask R-CNN on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/mask_rcnn_slim.py', './datasets/shapes_instances.py', './schedules/adamw_slim.py',
    './runtime.py'
]

model = dict(roi_head=dict(bbox_head=dict(num_classes=3), mask_head=dict(num_classes=3)))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
