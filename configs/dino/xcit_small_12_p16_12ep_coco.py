_base_ = '../_base_/dino_12ep_coco.py'
