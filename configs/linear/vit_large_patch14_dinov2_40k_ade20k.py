# The authors report an mIoU of 47.7 with their head.
_base_ = './vit_small_patch14_dinov2_40k_ade20k.py'

model = dict(
    backbone=dict(arch='vit_large_patch14_dinov2', frozen_stages=24),
    decode_head=dict(in_channels=1024))
