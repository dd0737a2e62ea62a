# Faster R-CNN small enough to train on two CPU cores.
_base_ = './mask_rcnn_slim.py'

model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
    train_cfg=dict(rcnn=dict(assigner=dict(match_low_quality=False))))
