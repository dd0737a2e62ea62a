_base_ = '../_base_/segformer_160k_ade20k.py'

model = dict(backbone=dict(type='PlainViT', arch='deit3_small_patch16_224', drop_path_rate=0.1))
