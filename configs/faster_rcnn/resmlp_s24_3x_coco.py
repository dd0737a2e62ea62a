_base_ = '../_base_/faster_rcnn_3x_coco.py'

model = dict(backbone=dict(type='ResMLP', arch='s24', drop_path_rate=0.1))
