_base_ = '../_base_/vitdet_100ep_coco_lsj.py'

model = dict(backbone=dict(arch='vit_base_patch16_dinov3'))
