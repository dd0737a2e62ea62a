# Panoptic FPN, 36 epochs of COCO, trained as Mask R-CNN.
_base_ = [
    './models/panoptic_fpn.py', './datasets/coco_panoptic_multiscale.py', './schedules/adamw_3x.py',
    './runtime.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
