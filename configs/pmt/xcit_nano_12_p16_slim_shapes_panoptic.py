_base_ = '../_base_/pmt_slim_shapes_panoptic.py'
