# mmseg reports 47.73 mIoU with its weights (vit-b16-ln_mln).
_base_ = './vit_base_patch16_224_160k_ade20k.py'

model = dict(backbone=dict(norm_features='last'))
