_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(backbone=dict(type='SimplifiedViT', arch='small_12_p16'))
