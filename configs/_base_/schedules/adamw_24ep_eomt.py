# 24 epochs as EoMT (arXiv 2503.19108) for S and B; batch 16 = 8 GPUs x 2 images. All decays.
# Differences: published, the rate of the head rises for 500 iterations, and that of the backbone
# for 1,000 after them (2,000 and 3,000 for DINOv3, without layer decay of the last blocks).
_base_ = './adamw_24ep_pmt.py'

optim_wrapper = dict(
    optimizer=dict(lr=1e-4),
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.8))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR',
        power=0.9,
        eta_min=0.,
        by_epoch=True,
        begin=0,
        end=24,
        convert_to_iter_based=True),
]
