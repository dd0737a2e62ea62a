_base_ = '../_base_/linear_slim_shapes.py'
