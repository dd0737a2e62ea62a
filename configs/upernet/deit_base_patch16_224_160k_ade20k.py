# mmseg reports 45.36 mIoU with its weights; 45.24 with those after 80,000 iterations.
_base_ = './deit_base_patch16_224_160k_ade20k_mln.py'

model = dict(neck=None)
