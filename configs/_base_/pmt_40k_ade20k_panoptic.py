# PMT for panoptic segmentation, 40,000 iterations of ADE20k at 640 x 640. Not published: images are
# those of EoMT, and the schedule is that of semantic segmentation.
_base_ = ['./models/pmt.py', './datasets/ade20k_panoptic.py', './schedules/adamw_40k_pmt.py']

custom_imports = dict(imports=_base_.custom_imports.imports + _base_.panoptic_imports)
model = _base_.panoptic
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
