# The authors report box and mask AP of 49.2 and 44.5 with their weights.
_base_ = './vit_base_patch16_224_mae_100ep_lvis_lsj.py'

model = dict(
    backbone=dict(arch=dict(model='vit_large_patch16_224.mae'), drop_path_rate=0.4),
    neck=dict(in_channels=1024))
optim_wrapper = dict(paramwise_cfg=dict(layer_decay_rate=0.8))
