# SETR (multi-level aggregation) on a ViT as mmseg trains it: its files load strictly.
# Images are normalized for ImageNet, as in mmseg, and not as timm's weights expect.
_base_ = './segmentor.py'

accepted_findings = ['normalisation']

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch=dict(model='vit_large_patch16_384', class_token=False),
        img_size=512,
        norm_features=False,
        pos_embed_resize='bilinear',
        drop_path_rate=0.,
        out_indices=(5, 11, 17, 23)),
    neck=dict(
        _delete_=True,
        type='MLANeck',
        in_channels=[1024] * 4,
        out_channels=256,
        norm_cfg=dict(type='BN'),
        act_cfg=dict(type='ReLU')),
    decode_head=dict(
        type='SETRMLAHead',
        in_channels=[256] * 4,
        channels=512,
        in_index=[0, 1, 2, 3],
        mla_channels=128,
        num_classes=150,
        dropout_ratio=0,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=[
        dict(
            type='FCNHead',
            in_channels=256,
            channels=256,
            in_index=index,
            num_classes=150,
            dropout_ratio=0,
            norm_cfg=dict(type='BN'),
            num_convs=0,
            kernel_size=1,
            concat_input=False,
            align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4))
        for index in range(4)
    ],
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
