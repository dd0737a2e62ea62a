_base_ = '../_base_/eomt_semantic_31ep_ade20k.py'

model = dict(
    backbone=dict(arch='vit_small_patch14_reg4_dinov2', patch_size=16),
    decode_head=dict(in_channels=384))
