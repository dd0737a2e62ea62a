_base_ = '../_base_/rtmdet_ins_300ep_coco.py'
