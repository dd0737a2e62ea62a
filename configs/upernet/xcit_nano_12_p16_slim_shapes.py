_base_ = '../_base_/upernet_slim_shapes.py'
