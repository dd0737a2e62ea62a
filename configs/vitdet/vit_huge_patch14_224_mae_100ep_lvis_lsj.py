# The authors report box and mask AP of 49.1 and 46.0 with their weights.
_base_ = './vit_base_patch16_224_mae_100ep_lvis_lsj.py'

model = dict(
    backbone=dict(arch=dict(model='vit_huge_patch14_224.mae'), patch_size=16, drop_path_rate=0.4),
    neck=dict(in_channels=1280))
optim_wrapper = dict(optimizer=dict(lr=1e-4), paramwise_cfg=dict(layer_decay_rate=0.9))
