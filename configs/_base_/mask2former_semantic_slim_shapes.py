# A slim Mask2Former on synthetic shapes, for machines without a GPU.
_base_ = [
    './models/mask2former_semantic_slim.py', './datasets/shapes_semantic.py',
    './schedules/adamw_slim.py'
]

# heads of queries need smaller steps
optim_wrapper = dict(optimizer=dict(lr=1e-3))
model = dict(decode_head=dict(num_classes=4, loss_cls=dict(class_weight=[1.0] * 4 + [0.1])))
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
