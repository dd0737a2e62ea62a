_base_ = '../_base_/eomt_semantic_16ep_ade20k.py'

model = dict(backbone=dict(arch='vit_small_patch16_dinov3'), decode_head=dict(in_channels=384))
