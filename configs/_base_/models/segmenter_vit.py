# Segmenter on a ViT as mmseg trains it: its files load strictly.
_base_ = './segmenter.py'

model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=dict(
        type='PlainViT',
        arch='vit_small_patch16_384',
        img_size=512,
        norm_features=True,
        pos_embed_resize='bicubic',
        drop_path_rate=0.1))
