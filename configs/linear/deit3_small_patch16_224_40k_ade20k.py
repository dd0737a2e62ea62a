_base_ = '../_base_/linear_40k_ade20k.py'

model = dict(backbone=dict(type='PlainViT', arch='deit3_small_patch16_224'))
