_base_ = '../_base_/sem_fpn_80k_ade20k.py'
