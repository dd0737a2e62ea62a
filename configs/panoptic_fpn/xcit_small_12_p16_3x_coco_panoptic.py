_base_ = '../_base_/panoptic_fpn_3x_coco_panoptic.py'
