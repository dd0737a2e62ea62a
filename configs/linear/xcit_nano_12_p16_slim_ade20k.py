_base_ = '../_base_/linear_slim_ade20k.py'
