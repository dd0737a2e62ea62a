_base_ = '../_base_/segformer_slim_shapes.py'
