_base_ = '../_base_/panoptic_fpn_3x_coco_panoptic.py'

levels = dict(featmap_strides=[3.5, 7, 14, 28])
model = dict(
    data_preprocessor=dict(pad_size_divisor=28),
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[3.5, 7, 14, 28]),
    rpn_head=dict(anchor_generator=dict(strides=[3.5, 7, 14, 28, 56])),
    roi_head=dict(bbox_roi_extractor=levels, mask_roi_extractor=levels))
