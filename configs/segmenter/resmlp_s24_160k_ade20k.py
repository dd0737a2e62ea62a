_base_ = '../_base_/segmenter_160k_ade20k.py'

model = dict(backbone=dict(type='ResMLP', arch='s24', drop_path_rate=0.1))
