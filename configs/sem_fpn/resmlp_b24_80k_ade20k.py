_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(type='ResMLP', arch='b24', drop_path_rate=0.15),
    neck=dict(in_channels=768, stride=8),
    decode_head=dict(in_channels=[768] * 4))
