_base_ = '../_base_/mask_rcnn_3x_coco.py'

model = dict(backbone=dict(arch='small_24_p16', drop_path_rate=0.1))
