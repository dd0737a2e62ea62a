_base_ = '../_base_/panoptic_fpn_3x_coco_panoptic.py'

model = dict(backbone=dict(type='PlainViT', arch='deit3_small_patch16_224', drop_path_rate=0.1))
