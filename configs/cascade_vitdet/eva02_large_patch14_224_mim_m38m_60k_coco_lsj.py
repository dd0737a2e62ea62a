# The authors report box and mask AP of 59.2 and 50.8 with their weights, for batches of 144.
_base_ = './eva02_base_patch14_224_mim_in22k_60k_coco_lsj.py'

model = dict(
    backbone=dict(arch=dict(model='eva02_large_patch14_224.mim_m38m'), drop_path_rate=0.4),
    neck=dict(in_channels=1024))
optim_wrapper = dict(optimizer=dict(lr=6e-5), paramwise_cfg=dict(layer_decay_rate=0.8))
