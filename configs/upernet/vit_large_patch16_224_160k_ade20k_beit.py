# mmseg reports 56.33 mIoU with its weights.
_base_ = '../_base_/upernet_beit_160k_ade20k.py'

model = dict(
    backbone=dict(
        arch=dict(model='vit_large_patch16_224'), out_indices=(7, 11, 15, 23), drop_path_rate=0.2),
    neck=dict(embed_dim=1024),
    decode_head=dict(in_channels=[1024] * 4, channels=1024),
    auxiliary_head=dict(in_channels=1024))
