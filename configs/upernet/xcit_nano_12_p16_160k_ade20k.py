_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128),
    decode_head=dict(in_channels=[128] * 4),
    auxiliary_head=dict(in_channels=128))
