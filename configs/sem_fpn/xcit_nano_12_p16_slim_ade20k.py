_base_ = '../_base_/sem_fpn_slim_ade20k.py'
