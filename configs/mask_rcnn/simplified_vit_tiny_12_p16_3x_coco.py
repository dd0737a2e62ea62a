_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(type='SimplifiedViT', arch='tiny_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=192))
