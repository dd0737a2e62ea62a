_base_ = '../_base_/pmt_24ep_coco_panoptic.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_small_patch16_dinov3', return_prefix_tokens=True))
