# mmseg reports 46.19 mIoU with its weights.
_base_ = '../_base_/segmenter_vit_160k_ade20k.py'
