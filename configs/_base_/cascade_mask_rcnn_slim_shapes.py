# A slim Cascade Mask R-CNN on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/cascade_mask_rcnn_slim.py', './datasets/shapes_instances.py',
    './schedules/adamw_slim.py', './runtime.py'
]

model = dict(
    roi_head=dict(
        bbox_head=[dict(stage, num_classes=3) for stage in _base_.model.roi_head.bbox_head],
        mask_head=dict(num_classes=3)))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
