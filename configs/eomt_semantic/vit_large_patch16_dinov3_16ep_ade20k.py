_base_ = '../_base_/eomt_semantic_16ep_ade20k.py'

model = dict(
    backbone=dict(arch='vit_large_patch16_dinov3', num_query_blocks=4),
    decode_head=dict(in_channels=1024))
