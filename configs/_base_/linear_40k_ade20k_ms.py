# DINOv2's "+ms" evaluation (arXiv 2304.07193, section 7.4): a linear layer on the last four blocks,
# images of at least 640 pixels, and `colonnade test --tta` at the sizes in img_ratios.
_base_ = '../linear/vit_small_patch14_dinov2_40k_ade20k.py'

img_ratios = (1.0, 1.32, 1.73, 2.28, 3.0)
sizes = dict(
    RandomResize=dict(scale=(99999999, 640), ratio_range=(1.0, 3.0)),
    RandomCrop=dict(crop_size=(640, 640)),
    Resize=dict(scale=(99999999, 640)))
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
model = dict(
    data_preprocessor=dict(size=(640, 640)),
    backbone=dict(out_indices=[-4, -3, -2, -1]),
    decode_head=dict(in_channels=[384] * 4, in_index=[0, 1, 2, 3], input_transform='resize_concat'),
    test_cfg=dict(crop_size=(640, 640), stride=(320, 320)))
