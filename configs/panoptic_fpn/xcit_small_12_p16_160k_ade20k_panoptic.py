_base_ = '../_base_/panoptic_fpn_160k_ade20k_panoptic.py'
