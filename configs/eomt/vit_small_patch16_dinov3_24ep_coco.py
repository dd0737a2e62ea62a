_base_ = '../_base_/eomt_24ep_coco.py'

model = dict(backbone=dict(arch='vit_small_patch16_dinov3'), panoptic_head=dict(in_channels=384))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
