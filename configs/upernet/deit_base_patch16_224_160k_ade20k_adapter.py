# The authors report 48.8 mIoU with their weights.
_base_ = '../_base_/upernet_160k_ade20k_adapter.py'
