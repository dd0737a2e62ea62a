_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_base_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(in_channels=768, stride=14, out_strides=[3.5, 7, 14, 28]),
    decode_head=dict(in_channels=[768] * 4))
