# COCO 2017 panoptic segments with large-scale jitter, see coco_640.py.
_base_ = './coco_640.py'

load_segments = dict(type='LoadPanopticSegments', with_bbox=True)
train_pipeline = [
    load_segments if step.type == 'LoadAnnotations' else step for step in _base_.train_pipeline
    if step.type != 'FilterAnnotations'
]
test_pipeline = [step for step in _base_.test_pipeline if step.type != 'LoadAnnotations']
train_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(img='train2017/', seg='annotations/panoptic_train2017/'),
        pipeline=train_pipeline))
val_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(img='val2017/', seg='annotations/panoptic_val2017/'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    _delete_=True,
    type='PanopticQuality',
    ann_file=_base_.data_root + '/annotations/panoptic_val2017.json',
    seg_prefix=_base_.data_root + '/annotations/panoptic_val2017/')
test_evaluator = val_evaluator

# settings of heads of queries
num_classes = dict(num_things_classes=80, num_stuff_classes=53)
panoptic = dict(
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    panoptic_head=num_classes,
    panoptic_fusion_head=num_classes,
    test_cfg=dict(panoptic_on=True, instance_on=False))
