_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(
    backbone=dict(type='SimplifiedViT', arch='tiny_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=192),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192))
