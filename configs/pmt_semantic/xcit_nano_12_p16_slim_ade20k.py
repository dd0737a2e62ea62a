_base_ = '../_base_/pmt_semantic_slim_ade20k.py'
