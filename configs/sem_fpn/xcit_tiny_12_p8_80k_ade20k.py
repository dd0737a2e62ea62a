_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(arch='tiny_12_p8', drop_path_rate=0.0),
    neck=dict(in_channels=192, stride=8),
    decode_head=dict(in_channels=[192] * 4))
