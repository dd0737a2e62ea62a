# 160,000 iterations as Mask2Former; the trunk learns at a tenth of the rate. As in mmseg's config
# of ResNet-50, norms of the trunk decay: mmengine asks 'backbone' before norm_decay_mult.
_base_ = './adamw_160k.py'

optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(
        _delete_=True,
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            'query_embed': dict(decay_mult=0.0),
            'query_feat': dict(decay_mult=0.0),
            'level_embed': dict(decay_mult=0.0),
        },
        norm_decay_mult=0.0),
    clip_grad=dict(max_norm=0.01, norm_type=2))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=0, end=160000),
]
