_base_ = '../_base_/mask2former_slim_coco.py'
