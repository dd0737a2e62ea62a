_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(
    backbone=dict(type='PlainViT', arch='deit3_base_patch16_224', drop_path_rate=0.1),
    neck=dict(in_channels=768),
    decode_head=dict(in_channels=[768] * 4),
    auxiliary_head=dict(in_channels=768))
