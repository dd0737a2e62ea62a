# SETR (naive upsampling) on a ViT as mmseg trains it: its files load strictly.
# Images are normalized for ImageNet, as in mmseg, and not as timm's weights expect.
_base_ = './segmentor.py'

accepted_findings = ['normalisation']

model = dict(
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch='vit_large_patch16_384',
        img_size=512,
        norm_features=False,
        pos_embed_resize='bilinear',
        drop_path_rate=0.,
        out_indices=(9, 14, 19, 23)),
    neck=None,
    decode_head=dict(
        type='SETRUPHead',
        in_channels=1024,
        channels=256,
        in_index=3,
        num_classes=150,
        dropout_ratio=0,
        norm_cfg=dict(type='BN'),
        num_convs=1,
        up_scale=4,
        kernel_size=1,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=[
        dict(
            type='SETRUPHead',
            in_channels=1024,
            channels=256,
            in_index=index,
            num_classes=150,
            dropout_ratio=0,
            norm_cfg=dict(type='BN'),
            num_convs=2,
            kernel_size=1,
            align_corners=False,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4))
        for index in range(3)
    ],
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)))
