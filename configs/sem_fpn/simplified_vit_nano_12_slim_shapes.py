_base_ = '../_base_/sem_fpn_slim_shapes.py'

model = dict(backbone=dict(type='SimplifiedViT', arch='nano_12_p16', img_size=128))
