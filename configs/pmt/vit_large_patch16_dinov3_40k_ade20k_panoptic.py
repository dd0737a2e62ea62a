_base_ = '../_base_/pmt_40k_ade20k_panoptic.py'

model = dict(
    backbone=dict(
        type='PlainViT',
        arch='vit_large_patch16_dinov3',
        frozen_stages=24,
        return_prefix_tokens=True),
    panoptic_head=dict(in_channels=1024))
