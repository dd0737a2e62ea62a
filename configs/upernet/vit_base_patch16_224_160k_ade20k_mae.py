# mmseg reports 48.13 mIoU with its weights.
_base_ = '../_base_/upernet_mae_160k_ade20k.py'
