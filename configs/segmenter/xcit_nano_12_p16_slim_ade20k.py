_base_ = '../_base_/segmenter_slim_ade20k.py'
