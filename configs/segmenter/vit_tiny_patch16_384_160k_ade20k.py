# mmseg reports 39.99 mIoU with its weights.
_base_ = '../_base_/segmenter_vit_160k_ade20k.py'

model = dict(
    backbone=dict(arch='vit_tiny_patch16_384'),
    decode_head=dict(in_channels=192, channels=192, embed_dims=192, num_heads=3))
