# The authors report an mIoU of 53.0 with their head and --tta.
_base_ = './vit_small_patch14_dinov2_40k_ade20k_ms.py'

model = dict(
    backbone=dict(arch='vit_giant_patch14_dinov2', frozen_stages=40),
    decode_head=dict(in_channels=[1536] * 4))
