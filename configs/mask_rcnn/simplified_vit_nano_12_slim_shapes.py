_base_ = '../_base_/mask_rcnn_slim_shapes.py'

model = dict(backbone=dict(type='SimplifiedViT', arch='nano_12_p16', img_size=128))
