_base_ = '../_base_/eomt_semantic_slim_ade20k.py'
