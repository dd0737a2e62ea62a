# UperNet on a ViT as mmseg trains it: its files load strictly.
_base_ = './upernet.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch='vit_base_patch16_224',
        img_size=512,
        norm_features=False,
        pos_embed_resize='bicubic',
        drop_path_rate=0.,
        out_indices=(2, 5, 8, 11)),
    neck=dict(
        _delete_=True,
        type='MultiLevelNeck',
        in_channels=[768] * 4,
        out_channels=768,
        scales=[4, 2, 1, 0.5]),
    decode_head=dict(in_channels=[768] * 4),
    auxiliary_head=dict(in_channels=768, in_index=3))
