# mmseg reports 48.24 mIoU with its weights.
_base_ = '../_base_/setr_pup_160k_ade20k.py'
