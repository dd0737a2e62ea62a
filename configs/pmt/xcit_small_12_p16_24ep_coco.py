_base_ = '../_base_/pmt_24ep_coco.py'
