# mmseg reports 45.46 mIoU with its weights.
_base_ = '../_base_/upernet_vit_160k_ade20k.py'

model = dict(backbone=dict(arch='deit_base_patch16_224', drop_path_rate=0.1))
