# Mask2Former for panoptic segmentation, 50 epochs of COCO with large-scale jitter. For differences,
# see mask2former_50ep_coco_lsj.py.
_base_ = [
    './models/mask2former.py', './datasets/coco_panoptic_lsj.py', './schedules/adamw_50ep.py',
    './runtime.py'
]

custom_imports = dict(
    imports=_base_.custom_imports.imports +
    ['colonnade.datasets.panoptic_annotations', 'colonnade.evaluation.panoptic_quality'])
model = dict(
    _base_.panoptic,
    data_preprocessor=dict(_base_.panoptic.data_preprocessor, pad_size_divisor=1024),
    panoptic_head=dict(
        _base_.num_classes, loss_cls=dict(class_weight=[1.0] * 133 + [_base_.no_object])))
train_dataloader = dict(sampler=dict(type='InfiniteSampler'))  # the schedule counts iterations
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
