_base_ = '../_base_/mask2former_semantic_slim_ade20k.py'
