_base_ = '../_base_/upernet_slim_ade20k.py'
