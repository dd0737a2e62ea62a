# mmseg reports 43.82 mIoU with its weights.
_base_ = '../_base_/upernet_vit_160k_ade20k.py'

model = dict(
    backbone=dict(arch='deit_small_patch16_224', drop_path_rate=0.1),
    neck=dict(in_channels=[384] * 4, out_channels=384),
    decode_head=dict(in_channels=[384] * 4),
    auxiliary_head=dict(in_channels=384))
