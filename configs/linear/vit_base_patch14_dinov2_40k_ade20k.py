# The authors report an mIoU of 47.3 with their head.
_base_ = './vit_small_patch14_dinov2_40k_ade20k.py'

model = dict(backbone=dict(arch='vit_base_patch14_dinov2'), decode_head=dict(in_channels=768))
