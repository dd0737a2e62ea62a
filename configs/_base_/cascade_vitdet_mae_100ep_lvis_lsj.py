# Cascade ViTDet on MAE's weights for LVIS. Differences from the authors' recipe: see
# models/cascade_vitdet_mae.py, models/vitdet.py and schedules/adamw_100ep.py.
_base_ = ['./models/cascade_vitdet_mae.py', './datasets/lvis_lsj.py', './schedules/adamw_100ep.py']

custom_imports = dict(imports=_base_.custom_imports.imports + [
    'colonnade.datasets.lvis', 'colonnade.evaluation.lvis_metric', 'colonnade.heads.federated_loss'
])
federated_loss = dict(type='FederatedLoss', num_classes=1203)
model = dict(
    data_preprocessor=dict(pad_size_divisor=1024),
    roi_head=dict(
        bbox_head=[
            dict(stage, num_classes=1203, loss_cls=federated_loss)
            for stage in _base_.model.roi_head.bbox_head
        ],
        mask_head=dict(num_classes=1203)),
    test_cfg=dict(rcnn=dict(score_thr=0.02, max_per_img=300)))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
custom_hooks = [dict(type='ImageCountHook')]
