# Panoptic FPN, 160,000 iterations of ADE20k. Not published: images are those of Mask2Former, and
# the schedule is that of UperNet.
_base_ = [
    './models/panoptic_fpn.py', './datasets/ade20k_panoptic_shortest_edge.py',
    './schedules/adamw_160k.py', './runtime.py'
]

custom_imports = dict(imports=_base_.custom_imports.imports + [
    'colonnade.datasets.ade20k_panoptic', 'colonnade.datasets.panoptic_annotations',
    'colonnade.evaluation.panoptic_quality'
])
model = dict(
    roi_head=dict(bbox_head=dict(num_classes=100), mask_head=dict(num_classes=100)),
    semantic_head=_base_.num_classes,
    panoptic_fusion_head=_base_.num_classes)
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
