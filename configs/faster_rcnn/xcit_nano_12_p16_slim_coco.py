_base_ = '../_base_/faster_rcnn_slim_coco.py'
