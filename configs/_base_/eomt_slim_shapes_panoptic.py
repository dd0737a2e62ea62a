# A slim EoMT on synthetic shapes and their background, for machines without a GPU.
_base_ = [
    './models/eomt_slim.py', './datasets/shapes_panoptic.py', './schedules/adamw_slim_queries.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
model = _base_.panoptic
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
