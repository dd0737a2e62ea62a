# mmseg reports 45.37 mIoU with its weights (deit-b16-ln_mln).
_base_ = './deit_base_patch16_224_160k_ade20k_mln.py'

model = dict(backbone=dict(norm_features='last'))
