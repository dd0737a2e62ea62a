# Mask2Former, 160,000 iterations of ADE20k, as published with it. What decays differs, see
# schedules/adamw_50ep.py.
_base_ = [
    './models/mask2former_semantic.py', './datasets/ade20k_shortest_edge.py',
    './schedules/adamw_160k_mask2former.py'
]

default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
