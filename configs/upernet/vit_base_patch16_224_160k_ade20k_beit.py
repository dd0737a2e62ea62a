# mmseg reports 53.08 mIoU with its weights.
_base_ = '../_base_/upernet_beit_160k_ade20k.py'
