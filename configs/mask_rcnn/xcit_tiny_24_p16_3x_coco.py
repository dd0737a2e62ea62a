_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(arch='tiny_24_p16'), neck=dict(in_channels=192))
