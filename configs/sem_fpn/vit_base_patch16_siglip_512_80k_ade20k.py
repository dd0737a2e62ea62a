_base_ = '../_base_/sem_fpn_80k_ade20k.py'

# images in [-1, 1]
model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=dict(type='PlainViT', arch='vit_base_patch16_siglip_512', drop_path_rate=0.1),
    neck=dict(in_channels=768),
    decode_head=dict(in_channels=[768] * 4))
