# EoMT for panoptic segmentation of COCO: 80 classes of things, 53 of stuff.
_base_ = './eomt.py'

model = dict(
    data_preprocessor=dict(pad_seg=True, seg_pad_value=255),
    panoptic_head=dict(num_stuff_classes=53),
    panoptic_fusion_head=dict(num_stuff_classes=53),
    test_cfg=dict(panoptic_on=True, instance_on=False))
