_base_ = '../_base_/panoptic_fpn_3x_coco_panoptic.py'

model = dict(backbone=dict(type='PlainViT', arch='vit_small_patch16_dinov3', drop_path_rate=0.1))
