# Mask R-CNN, 100 epochs of COCO with large-scale jitter, as ViTDet trains.
_base_ = [
    './models/mask_rcnn.py', './datasets/coco_lsj.py', './schedules/adamw_100ep.py', './runtime.py'
]

model = dict(data_preprocessor=dict(pad_size_divisor=1024))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
