# 160,000 iterations as Segmenter, without weight decay; batch 8 = 8 GPUs x 1 image. The rate ends
# at 1e-4 as in mmseg, not at the authors' 1e-5.
_base_ = './adamw_160k.py'

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=0.0))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=1e-4, by_epoch=False, begin=0, end=160000),
]
auto_scale_lr = dict(base_batch_size=8)
