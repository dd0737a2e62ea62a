_base_ = '../_base_/pmt_24ep_coco.py'

model = dict(backbone=dict(type='CaiT', arch='s24', frozen_stages=24))
