_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(backbone=dict(arch='small_12_p8'), neck=dict(stride=8))
