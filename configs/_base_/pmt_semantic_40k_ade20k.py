# PMT for semantic segmentation, 40,000 iterations of ADE20k. Tested by windows of 512 x 512.
_base_ = ['./models/pmt_semantic.py', './datasets/ade20k.py', './schedules/adamw_40k_pmt.py']

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
