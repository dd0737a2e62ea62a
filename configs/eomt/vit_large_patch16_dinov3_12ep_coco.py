_base_ = '../_base_/eomt_12ep_coco.py'

model = dict(
    backbone=dict(arch='vit_large_patch16_dinov3', num_query_blocks=4),
    panoptic_head=dict(in_channels=1024))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
