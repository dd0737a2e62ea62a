# A slim PMT on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/pmt_semantic_slim.py', './datasets/shapes_semantic.py', './schedules/adamw_slim.py'
]

# heads of queries need smaller steps
optim_wrapper = dict(optimizer=dict(lr=1e-3))
model = dict(decode_head=dict(num_classes=4))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
