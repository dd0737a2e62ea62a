# PMT for panoptic segmentation, 40,000 iterations of ADE20k at 640 x 640. Not published: images are
# those of EoMT, and the schedule is that of semantic segmentation.
_base_ = ['./models/pmt.py', './datasets/ade20k_panoptic.py', './schedules/adamw_40k_pmt.py']

custom_imports = dict(imports=_base_.custom_imports.imports + [
    'colonnade.datasets.ade20k_panoptic', 'colonnade.datasets.panoptic_annotations',
    'colonnade.evaluation.panoptic_quality'
])
model = _base_.panoptic
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
