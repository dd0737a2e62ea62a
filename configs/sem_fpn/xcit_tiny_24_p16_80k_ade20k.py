_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(arch='tiny_24_p16'),
    neck=dict(in_channels=192),
    decode_head=dict(in_channels=[192] * 4))
