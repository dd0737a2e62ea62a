_base_ = '../_base_/mask2former_50ep_coco_panoptic.py'
