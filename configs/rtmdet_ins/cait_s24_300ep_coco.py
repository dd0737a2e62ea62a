_base_ = '../_base_/rtmdet_ins_300ep_coco.py'

model = dict(backbone=dict(type='CaiT', arch='s24', out_indices=(11, 15, 23), drop_path_rate=0.1))
