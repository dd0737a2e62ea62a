# mmseg reports 46.75 mIoU with its weights; 47.71 with those after 80,000 iterations.
_base_ = '../_base_/upernet_vit_160k_ade20k.py'
