_base_ = '../_base_/faster_rcnn_3x_coco.py'
