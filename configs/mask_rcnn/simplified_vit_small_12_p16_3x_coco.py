_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(type='SimplifiedViT', arch='small_12_p16'))
