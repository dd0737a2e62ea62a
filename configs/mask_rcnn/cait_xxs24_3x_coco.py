_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(type='CaiT', arch='xxs24'), neck=dict(in_channels=192))
