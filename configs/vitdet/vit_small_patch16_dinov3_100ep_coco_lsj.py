_base_ = '../_base_/vitdet_100ep_coco_lsj.py'

model = dict(backbone=dict(arch='vit_small_patch16_dinov3'), neck=dict(in_channels=384))
