# RTMDet-Ins, 300 epochs of COCO: mosaics and mixtures for 280, and averaged weights. The learning
# rate and what decays differ from the published, see schedules/adamw_300ep.py.
_base_ = [
    './models/rtmdet_ins.py', './datasets/coco_mosaic.py', './schedules/adamw_300ep.py',
    './runtime.py'
]

find_unused_parameters = True  # a process may have images without objects, so no masks
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
custom_hooks = [
    dict(
        type='EMAHook', ema_type='ExpMomentumEMA', momentum=2e-4, update_buffers=True, priority=49),
    dict(type='PipelineSwitchHook', switch_epoch=280, switch_pipeline=_base_.plain_pipeline),
]
