_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(arch='large_24_p16', drop_path_rate=0.25),
    neck=dict(in_channels=768),
    decode_head=dict(in_channels=[768] * 4))
