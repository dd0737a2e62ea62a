_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(arch='small_12_p8'), neck=dict(stride=8))
