# PMT for instances, 24 epochs of COCO at 640 x 640. Difference: the largest model (vit_large) was
# published with 12 epochs; set train_cfg.max_epochs and the end of the schedule.
_base_ = ['./models/pmt.py', './datasets/coco_640.py', './schedules/adamw_24ep_pmt.py']

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
