_base_ = '../_base_/segmenter_160k_ade20k.py'
