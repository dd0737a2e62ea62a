_base_ = '../_base_/segformer_slim_ade20k.py'
