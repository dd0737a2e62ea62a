# ViTDet-B (arXiv 2203.16527, appendix A.2): Mask R-CNN on a plain ViT whose blocks attend within
# windows, but for four. All levels come from the last map, and heads have layer norms. As in the
# authors' code, a box that overlaps its object by less than half is background. Differences:
# all blocks have the rate of stochastic depth that the last one has, and only vitdet_mae.py has
# relative positions.
_base_ = './mask_rcnn.py'

model = dict(
    backbone=dict(
        type='PlainViT', arch='vit_base_patch16_224.mae', window_size=14, drop_path_rate=0.1),
    neck=dict(_delete_=True, type='SimplePyramid', in_channels=768, stride=16),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', norm_cfg=dict(type='LN2d', eps=1e-6)),
        mask_head=dict(norm_cfg=dict(type='LN2d', eps=1e-6))),
    train_cfg=dict(rcnn=dict(assigner=dict(match_low_quality=False))))
