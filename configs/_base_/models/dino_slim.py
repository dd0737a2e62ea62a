# DINO small enough to train on two CPU cores.
_base_ = './dino.py'

model = dict(
    num_queries=30,
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128, fpn=dict(out_channels=64)),
    encoder=dict(
        num_layers=1,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=64, num_heads=4),
            ffn_cfg=dict(embed_dims=64, feedforward_channels=256))),
    decoder=dict(
        num_layers=3,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=64, num_heads=4),
            cross_attn_cfg=dict(embed_dims=64, num_heads=4),
            ffn_cfg=dict(embed_dims=64, feedforward_channels=256))),
    positional_encoding=dict(num_feats=32),
    bbox_head=dict(embed_dims=64),
    dn_cfg=dict(group_cfg=dict(num_dn_queries=20)),
    test_cfg=dict(max_per_img=30))
