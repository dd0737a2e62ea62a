_base_ = '../_base_/pmt_semantic_40k_ade20k.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_small_patch16_dinov3', return_prefix_tokens=True))
