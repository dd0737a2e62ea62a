_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(type='CaiT', arch='xxs24'),
    neck=dict(in_channels=192),
    decode_head=dict(in_channels=[192] * 4))
