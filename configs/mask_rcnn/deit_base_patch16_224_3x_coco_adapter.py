# The authors report box and mask AP of 49.6 and 43.6 with their weights.
_base_ = '../_base_/mask_rcnn_3x_coco_adapter.py'
