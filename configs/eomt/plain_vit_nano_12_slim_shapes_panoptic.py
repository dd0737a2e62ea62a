_base_ = '../_base_/eomt_slim_shapes_panoptic.py'
