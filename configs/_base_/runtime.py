# What every recipe shares. default_scope and the visualizer are the model's.
custom_imports = dict(
    imports=['colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components'],
    allow_failed_imports=False)

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
# Several processes normalise over their common batch, as the originals did; one process has no use
# for it, so the models say BN and mmengine converts.
sync_bn = 'torch'
log_level = 'INFO'
load_from = None
resume = False
