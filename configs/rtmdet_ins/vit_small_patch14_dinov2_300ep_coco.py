_base_ = '../_base_/rtmdet_ins_300ep_coco.py'

model = dict(
    data_preprocessor=dict(pad_size_divisor=28),
    backbone=dict(type='PlainViT', arch='vit_small_patch14_dinov2', drop_path_rate=0.1),
    neck=dict(stride=14, out_strides=[7, 14, 28]),
    bbox_head=dict(anchor_generator=dict(strides=[7, 14, 28]), mask_loss_stride=7))
