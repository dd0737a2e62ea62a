_base_ = '../_base_/segmenter_160k_ade20k.py'

model = dict(backbone=dict(type='PlainViT', arch='vit_small_patch16_dinov3', drop_path_rate=0.1))
