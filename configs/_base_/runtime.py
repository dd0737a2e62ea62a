# Settings that all recipes share; default_scope and the visualizer are set by the models.
custom_imports = dict(
    imports=['colonnade.backbones', 'colonnade.necks', 'colonnade.engine.components'],
    allow_failed_imports=False)

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))
# Several processes normalize over their joint batch, as the originals did. One process does not
# need that, so the models use BN and mmengine converts it.
sync_bn = 'torch'
log_level = 'INFO'
load_from = None
resume = False
