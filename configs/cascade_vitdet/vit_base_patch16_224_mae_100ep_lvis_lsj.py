# The authors report box and mask AP of 43.0 and 38.9 with their weights.
_base_ = '../_base_/cascade_vitdet_mae_100ep_lvis_lsj.py'
