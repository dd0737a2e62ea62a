_base_ = '../_base_/mask2former_50ep_coco_panoptic.py'

model = dict(backbone=dict(type='PlainViT', arch='vit_small_patch16_dinov3', drop_path_rate=0.1))
