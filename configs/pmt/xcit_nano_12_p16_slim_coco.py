_base_ = '../_base_/pmt_slim_coco.py'
