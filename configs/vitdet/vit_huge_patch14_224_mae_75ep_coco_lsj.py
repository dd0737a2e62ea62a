# The authors report box and mask AP of 56.7 and 50.2 with their weights.
_base_ = '../_base_/vitdet_mae_75ep_coco_lsj.py'

model = dict(
    backbone=dict(arch=dict(model='vit_huge_patch14_224.mae'), patch_size=16, drop_path_rate=0.5),
    neck=dict(in_channels=1280))
