# A slim Mask2Former on synthetic shapes and their background, for machines without a GPU.
_base_ = [
    './models/mask2former_slim.py', './datasets/shapes_panoptic.py',
    './schedules/adamw_slim_queries.py', './runtime.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
model = dict(
    _base_.panoptic,
    panoptic_head=dict(
        _base_.num_classes, loss_cls=dict(class_weight=[1.0] * 4 + [_base_.no_object])))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
