_base_ = '../_base_/linear_40k_ade20k.py'
