# DPT on a ViT as mmseg trains it: its files load strictly.
_base_ = './segmentor.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch='vit_base_patch16_224',
        norm_eps=1e-5,
        norm_features=False,
        pos_embed_resize='bicubic',
        return_prefix_tokens='class',
        drop_path_rate=0.,
        out_indices=(2, 5, 8, 11)),
    neck=None,
    decode_head=dict(
        type='DPTHead',
        in_channels=[768] * 4,
        channels=256,
        embed_dims=768,
        post_process_channels=[96, 192, 384, 768],
        in_index=[0, 1, 2, 3],
        num_classes=150,
        readout_type='project',
        input_transform='multiple_select',
        norm_cfg=dict(type='BN'),
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
