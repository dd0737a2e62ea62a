_base_ = '../_base_/rtmdet_ins_slim_coco.py'
