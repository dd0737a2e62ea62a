# mmseg reports 47.39 mIoU with its weights.
_base_ = '../_base_/setr_mla_160k_ade20k.py'
