# The authors report an mIoU of 53.1 with their head and --tta.
_base_ = './vit_small_patch14_dinov2_40k_ade20k_ms.py'

model = dict(
    backbone=dict(arch='vit_large_patch14_dinov2', frozen_stages=24),
    decode_head=dict(in_channels=[1024] * 4))
