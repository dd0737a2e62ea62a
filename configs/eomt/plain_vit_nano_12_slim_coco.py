_base_ = '../_base_/eomt_slim_coco.py'
