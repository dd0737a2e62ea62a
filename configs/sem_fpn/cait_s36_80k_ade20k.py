_base_ = '../_base_/sem_fpn_80k_ade20k.py'

model = dict(backbone=dict(type='CaiT', arch='s36', drop_path_rate=0.2))
