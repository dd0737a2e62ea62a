_base_ = '../_base_/pmt_24ep_coco.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_base_patch16_dinov3', return_prefix_tokens=True),
    panoptic_head=dict(in_channels=768))
