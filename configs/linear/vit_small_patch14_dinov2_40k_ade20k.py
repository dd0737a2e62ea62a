# The authors report an mIoU of 44.3 with their head.
_base_ = '../_base_/linear_40k_ade20k.py'

model = dict(
    backbone=dict(
        type='PlainViT',
        arch='vit_small_patch14_dinov2',
        center_padding=True,
        pos_embed_resize='dinov2'))
