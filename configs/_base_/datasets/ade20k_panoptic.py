# ADE20k panoptic segments with large-scale jitter at 640 x 640: 100 classes of things, 50 of stuff.
# The annotations are those that Mask2Former's datasets/prepare_ade20k_pan_seg.py writes.
import os

_base_ = './coco_panoptic.py'

data_root = os.environ.get('COLONNADE_ADE') or 'data/ade/ADEChallengeData2016'
train_dataloader = dict(
    sampler=dict(type='InfiniteSampler'),  # the schedules count iterations
    dataset=dict(
        type='ADE20KPanopticSegments',
        data_root=data_root,
        ann_file='ade20k_panoptic_train.json',
        data_prefix=dict(img='images/training/', seg='ade20k_panoptic_train/'),
        filter_cfg=dict(filter_empty_gt=False)))
val_dataloader = dict(
    dataset=dict(
        type='ADE20KPanopticSegments',
        data_root=data_root,
        ann_file='ade20k_panoptic_val.json',
        data_prefix=dict(img='images/validation/', seg='ade20k_panoptic_val/')))
test_dataloader = val_dataloader
val_evaluator = dict(
    ann_file=data_root + '/ade20k_panoptic_val.json',
    seg_prefix=data_root + '/ade20k_panoptic_val/')
test_evaluator = val_evaluator

num_classes = dict(num_things_classes=100, num_stuff_classes=50)
panoptic = dict(panoptic_head=num_classes, panoptic_fusion_head=num_classes)
