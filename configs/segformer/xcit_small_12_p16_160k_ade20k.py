_base_ = '../_base_/segformer_160k_ade20k.py'
