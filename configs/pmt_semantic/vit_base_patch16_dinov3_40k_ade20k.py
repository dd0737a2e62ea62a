_base_ = '../_base_/pmt_semantic_40k_ade20k.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_base_patch16_dinov3', return_prefix_tokens=True),
    decode_head=dict(in_channels=768))
