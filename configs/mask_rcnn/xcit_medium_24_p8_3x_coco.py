_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(arch='medium_24_p8', drop_path_rate=0.15), neck=dict(in_channels=512, stride=8))
