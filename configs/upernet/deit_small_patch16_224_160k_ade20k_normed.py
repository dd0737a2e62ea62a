# mmseg reports 43.52 mIoU with its weights (deit-s16-ln_mln).
_base_ = './deit_small_patch16_224_160k_ade20k_mln.py'

model = dict(backbone=dict(norm_features='last'))
