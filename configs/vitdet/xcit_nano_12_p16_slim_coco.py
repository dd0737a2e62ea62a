_base_ = '../_base_/vitdet_slim_coco.py'
