_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(arch='large_24_p16', drop_path_rate=0.25), neck=dict(in_channels=768))
