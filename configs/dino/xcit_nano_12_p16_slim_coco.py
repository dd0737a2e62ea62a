_base_ = '../_base_/dino_slim_coco.py'
