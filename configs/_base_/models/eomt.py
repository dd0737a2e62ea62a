# EoMT, the Encoder-only Mask Transformer (arXiv 2503.19108), for instances. The queries run through
# the last blocks of the backbone: 3 of 12, 4 of 24. There is no neck.
_base_ = './pmt.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch='vit_small_patch16_dinov3',
        img_size=640,
        drop_path_rate=0.0,
        norm_features=True,
        num_query_blocks=3),
    panoptic_head=dict(
        _delete_=True, type='EoMTHead', in_channels=384, num_queries=200, **_base_.classes))
