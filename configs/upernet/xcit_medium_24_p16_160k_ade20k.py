_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(
    backbone=dict(arch='medium_24_p16', drop_path_rate=0.15),
    neck=dict(in_channels=512),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512))
