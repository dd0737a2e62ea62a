# 160,000 iterations of ADE20k as Mask2Former; what decays is as in its 50 epochs of COCO.
_base_ = './adamw_50ep.py'

train_cfg = dict(max_iters=160000)
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=0, end=160000),
]
