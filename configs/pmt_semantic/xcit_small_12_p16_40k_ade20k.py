_base_ = '../_base_/pmt_semantic_40k_ade20k.py'
