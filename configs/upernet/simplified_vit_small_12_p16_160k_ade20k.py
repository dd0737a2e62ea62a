_base_ = '../_base_/upernet_160k_ade20k.py'

model = dict(backbone=dict(type='SimplifiedViT', arch='small_12_p16'))
