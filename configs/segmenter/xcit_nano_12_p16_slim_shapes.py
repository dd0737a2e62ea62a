_base_ = '../_base_/segmenter_slim_shapes.py'
