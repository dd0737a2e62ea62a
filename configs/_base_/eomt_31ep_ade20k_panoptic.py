# EoMT for panoptic segmentation, 31 epochs of ADE20k at 640 x 640, see eomt_24ep_coco.py. As
# published, for models that were trained on COCO before.
_base_ = ['./models/eomt.py', './datasets/ade20k_panoptic.py', './schedules/adamw_31ep_eomt.py']

custom_imports = dict(imports=_base_.custom_imports.imports + [
    'colonnade.datasets.ade20k_panoptic', 'colonnade.datasets.panoptic_annotations',
    'colonnade.evaluation.panoptic_quality'
])
model = _base_.panoptic
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
