_base_ = '../_base_/cascade_mask_rcnn_3x_coco.py'

model = dict(
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[3.5, 7, 14, 28]),
    rpn_head=dict(anchor_generator=dict(strides=[3.5, 7, 14, 28, 56])),
    roi_head=dict(
        bbox_roi_extractor=dict(featmap_strides=[3.5, 7, 14, 28]),
        mask_roi_extractor=dict(featmap_strides=[3.5, 7, 14, 28])))
