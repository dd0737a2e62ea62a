_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(
    backbone=dict(type='CaiT', arch='xs24'),
    neck=dict(in_channels=288),
    decode_head=dict(in_channels=[288] * 4),
    auxiliary_head=dict(in_channels=288))
