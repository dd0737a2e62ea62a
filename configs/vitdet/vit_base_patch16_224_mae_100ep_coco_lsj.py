# The authors report box and mask AP of 51.6 and 45.9 with their weights.
_base_ = '../_base_/vitdet_mae_100ep_coco_lsj.py'
