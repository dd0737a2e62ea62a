# 16 epochs of ADE20k in iterations, as EoMT (arXiv 2503.19108) for DINOv3. All decays. For the
# warm-up, see adamw_24ep_eomt.py.
_base_ = './adamw_40k.py'

train_cfg = dict(max_iters=20192)
optim_wrapper = dict(
    optimizer=dict(lr=2e-4, weight_decay=0.05),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.8),
    clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=0, end=20192),
]
