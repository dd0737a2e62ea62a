# The authors report an mIoU of 47.2 with their head and --tta.
_base_ = '../_base_/linear_40k_ade20k_ms.py'

model = dict(
    backbone=dict(
        type='PlainViT',
        arch='vit_small_patch14_dinov2',
        center_padding=True,
        pos_embed_resize='dinov2'))
