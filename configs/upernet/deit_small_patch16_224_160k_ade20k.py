# mmseg reports 42.87 mIoU with its weights; 42.96 with those after 80,000 iterations.
_base_ = './deit_small_patch16_224_160k_ade20k_mln.py'

model = dict(neck=None)
