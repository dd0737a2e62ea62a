_base_ = '../_base_/dino_12ep_coco.py'

model = dict(backbone=dict(type='CaiT', arch='s24', out_indices=(11, 15, 23), drop_path_rate=0.1))
