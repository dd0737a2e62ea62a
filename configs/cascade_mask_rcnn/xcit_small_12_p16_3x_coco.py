_base_ = '../_base_/cascade_mask_rcnn_3x_coco.py'
