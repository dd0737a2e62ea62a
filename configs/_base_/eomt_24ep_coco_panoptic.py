# EoMT for panoptic segmentation, 24 epochs of COCO at 640 x 640, see eomt_24ep_coco.py.
_base_ = ['./models/eomt.py', './datasets/coco_panoptic.py', './schedules/adamw_24ep_eomt.py']

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
model = _base_.panoptic
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
