_base_ = '../_base_/mask_rcnn_100ep_coco_lsj.py'
