_base_ = '../_base_/mask2former_semantic_160k_ade20k.py'
