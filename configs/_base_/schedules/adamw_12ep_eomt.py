# 12 epochs as EoMT (arXiv 2503.19108) for L, see adamw_24ep_eomt.py.
_base_ = './adamw_24ep_eomt.py'

train_cfg = dict(max_epochs=12)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR',
        power=0.9,
        eta_min=0.,
        by_epoch=True,
        begin=0,
        end=12,
        convert_to_iter_based=True),
]
