_base_ = '../_base_/segformer_160k_ade20k.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_base_patch16_dinov3', drop_path_rate=0.1),
    neck=dict(in_channels=768),
    decode_head=dict(in_channels=[768] * 4))
