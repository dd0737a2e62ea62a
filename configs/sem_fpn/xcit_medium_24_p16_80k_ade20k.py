_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(arch='medium_24_p16', drop_path_rate=0.2),
    neck=dict(in_channels=512),
    decode_head=dict(in_channels=[512] * 4))
