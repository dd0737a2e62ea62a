# mmseg reports 49.60 mIoU with its weights.
_base_ = '../_base_/segmenter_vit_160k_ade20k.py'

model = dict(
    backbone=dict(arch='vit_base_patch16_384'),
    decode_head=dict(in_channels=768, channels=768, embed_dims=768, num_heads=12))
