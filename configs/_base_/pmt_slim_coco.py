# A slim PMT on COCO at small size, for machines without a GPU.
_base_ = ['./models/pmt_slim.py', './datasets/coco_slim.py', './schedules/adamw_slim_queries.py']

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
