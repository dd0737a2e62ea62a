_base_ = '../_base_/cascade_mask_rcnn_slim_coco.py'
