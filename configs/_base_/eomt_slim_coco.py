# A slim EoMT on COCO at small size, for machines without a GPU.
_base_ = ['./models/eomt_slim.py', './datasets/coco_slim.py', './schedules/adamw_slim_queries.py']

default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
