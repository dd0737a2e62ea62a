_base_ = '../_base_/mask_rcnn_3x_coco.py'
