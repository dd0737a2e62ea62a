# A slim EoMT on synthetic shapes and their background, for machines without a GPU.
_base_ = [
    './models/eomt_slim.py', './datasets/shapes_panoptic.py', './schedules/adamw_slim_queries.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
classes = dict(num_things_classes=3, num_stuff_classes=1)
model = dict(
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    panoptic_head=classes,
    panoptic_fusion_head=classes,
    test_cfg=dict(panoptic_on=True, instance_on=False))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
