_base_ = '../_base_/mask_rcnn_slim_shapes.py'
