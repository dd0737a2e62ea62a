# Mask2Former for panoptic segmentation, 160,000 iterations of ADE20k, as published with it. What
# decays differs, see schedules/adamw_50ep.py.
_base_ = [
    './models/mask2former.py', './datasets/ade20k_panoptic_shortest_edge.py',
    './schedules/adamw_160k_mask2former.py', './runtime.py'
]

custom_imports = dict(imports=_base_.custom_imports.imports + [
    'colonnade.datasets.ade20k_panoptic', 'colonnade.datasets.panoptic_annotations',
    'colonnade.evaluation.panoptic_quality'
])
model = dict(
    _base_.panoptic,
    panoptic_head=dict(
        _base_.num_classes, loss_cls=dict(class_weight=[1.0] * 150 + [_base_.no_object])))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
