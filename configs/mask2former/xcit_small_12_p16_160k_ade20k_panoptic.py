_base_ = '../_base_/mask2former_160k_ade20k_panoptic.py'
