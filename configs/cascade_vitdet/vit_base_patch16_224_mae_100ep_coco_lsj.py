# The authors report box and mask AP of 54.0 and 46.7 with their weights.
_base_ = '../_base_/cascade_vitdet_mae_100ep_coco_lsj.py'
