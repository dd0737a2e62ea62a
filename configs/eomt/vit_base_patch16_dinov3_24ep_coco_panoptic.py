_base_ = '../_base_/eomt_24ep_coco_panoptic.py'

model = dict(backbone=dict(arch='vit_base_patch16_dinov3'), panoptic_head=dict(in_channels=768))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
