_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(backbone=dict(arch='small_24_p8', drop_path_rate=0.1), neck=dict(stride=8))
