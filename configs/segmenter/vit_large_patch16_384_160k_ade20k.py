# mmseg reports 52.16 mIoU with its weights.
_base_ = '../_base_/segmenter_vit_large_160k_ade20k.py'
