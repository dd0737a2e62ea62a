# Segmenter's mask transformer (arXiv 2105.05633), as mmseg's segmenter_vit-s_mask: on the last
# map, with one attention head for 64 channels. Differences: images are normalized as the
# backbone's weights require, and only backbones that normalize their feature maps (DINO and later)
# have a final norm.
_base_ = './segmentor.py'

model = dict(
    backbone=dict(out_indices=[-1]),
    neck=None,
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_channels=384,
        channels=384,
        embed_dims=384,
        num_layers=2,
        num_heads=6,
        dropout_ratio=0.0,
        num_classes=150,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(480, 480)))
