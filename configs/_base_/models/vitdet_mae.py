# ViTDet on MAE's weights, with relative positions, windows padded with zeros, and no class token,
# as in the authors' code. Their files load strictly.
_base_ = './vitdet.py'

model = dict(
    backbone=dict(
        arch=dict(_delete_=True, model='vit_base_patch16_224.mae', class_token=False),
        pos_embed_resize='bicubic',
        rel_pos_size=64,
        window_padding='tokens'))
