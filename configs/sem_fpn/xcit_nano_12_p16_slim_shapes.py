_base_ = '../_base_/sem_fpn_slim_shapes.py'
