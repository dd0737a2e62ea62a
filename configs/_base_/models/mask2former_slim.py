# Mask2Former small enough to train on two CPU cores.
_base_ = './mask2former.py'

model = dict(
    backbone=dict(arch='nano_12_p16', drop_path_rate=0.0),
    neck=dict(in_channels=128),
    panoptic_head=dict(
        in_channels=[128] * 4,
        feat_channels=64,
        out_channels=64,
        num_queries=20,
        pixel_decoder=dict(
            encoder=dict(
                num_layers=2,
                layer_cfg=dict(
                    self_attn_cfg=dict(embed_dims=64, num_heads=4),
                    ffn_cfg=dict(embed_dims=64, feedforward_channels=256))),
            positional_encoding=dict(num_feats=32)),
        positional_encoding=dict(num_feats=32),
        transformer_decoder=dict(
            num_layers=3,
            layer_cfg=dict(
                self_attn_cfg=dict(embed_dims=64, num_heads=4),
                cross_attn_cfg=dict(embed_dims=64, num_heads=4),
                ffn_cfg=dict(embed_dims=64, feedforward_channels=256)))),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=20))
