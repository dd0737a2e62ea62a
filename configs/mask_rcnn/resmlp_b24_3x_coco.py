_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(type='ResMLP', arch='b24', drop_path_rate=0.15),
    neck=dict(in_channels=768, stride=8))
