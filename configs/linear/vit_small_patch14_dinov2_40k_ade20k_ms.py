# The authors report an mIoU of 47.2 with their head and --tta.
_base_ = '../_base_/linear_40k_ade20k_ms.py'
