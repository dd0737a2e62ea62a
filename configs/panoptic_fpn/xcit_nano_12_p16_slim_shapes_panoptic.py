_base_ = '../_base_/panoptic_fpn_slim_shapes_panoptic.py'
