_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128),
    decode_head=dict(in_channels=[128] * 4))
