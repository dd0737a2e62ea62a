# A slim PMT on ADE20k at small size, for machines without a GPU.
_base_ = ['./models/pmt_semantic_slim.py', './datasets/ade20k_slim.py', './schedules/adamw_slim.py']

# heads of queries need smaller steps
optim_wrapper = dict(optimizer=dict(lr=1e-3))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
