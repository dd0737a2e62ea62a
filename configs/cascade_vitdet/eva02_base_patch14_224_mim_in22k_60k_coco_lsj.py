# The authors report box and mask AP of 55.5 and 47.1 with their weights.
_base_ = '../_base_/cascade_vitdet_eva02_60k_coco_lsj.py'
