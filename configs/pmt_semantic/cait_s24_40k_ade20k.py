_base_ = '../_base_/pmt_semantic_40k_ade20k.py'

model = dict(backbone=dict(type='CaiT', arch='s24', frozen_stages=24))
