# The authors report box and mask AP of 40.2 and 38.2 with their weights.
_base_ = '../_base_/vitdet_mae_100ep_lvis_lsj.py'
