# UperNet on BEiT or MAE as mmseg trains them: its files load strictly.
_base_ = './upernet.py'

model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(
        _delete_=True,
        type='PlainViT',
        arch=dict(model='vit_base_patch16_224', pos_embed='none', init_values=0.1),
        img_size=640,
        rel_pos_size=40,
        rel_pos_type='table',
        norm_features=False,
        out_indices=(3, 5, 7, 11),
        drop_path_rate=0.1),
    neck=dict(_delete_=True, type='Feature2Pyramid', embed_dim=768, rescales=[4, 2, 1, 0.5]),
    decode_head=dict(in_channels=[768] * 4, channels=768),
    auxiliary_head=dict(in_channels=768),
    test_cfg=dict(mode='slide', crop_size=(640, 640), stride=(426, 426)))
