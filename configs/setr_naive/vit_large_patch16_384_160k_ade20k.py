# mmseg reports 48.28 mIoU with its weights.
_base_ = '../_base_/setr_naive_160k_ade20k.py'
