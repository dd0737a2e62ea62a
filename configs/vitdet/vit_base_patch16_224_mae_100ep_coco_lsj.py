_base_ = '../_base_/vitdet_100ep_coco_lsj.py'
