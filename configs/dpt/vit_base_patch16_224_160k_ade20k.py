# mmseg reports 46.97 mIoU with its weights.
_base_ = '../_base_/dpt_160k_ade20k.py'
