# A slim Panoptic FPN on synthetic shapes and their background, for machines without a GPU.
_base_ = [
    './models/panoptic_fpn_slim.py', './datasets/shapes_panoptic.py', './schedules/adamw_slim.py',
    './runtime.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=3), mask_head=dict(num_classes=3)),
    semantic_head=_base_.num_classes,
    panoptic_fusion_head=_base_.num_classes)
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
