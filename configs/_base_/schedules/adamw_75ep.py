# 75 epochs, as the authors train ViTDet-H.
_base_ = './adamw_100ep.py'

train_cfg = dict(max_epochs=75)
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.9))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=75, milestones=[67, 72], gamma=0.1),
]
