# Faster R-CNN: the boxes of Mask R-CNN. As in mmdet's faster-rcnn_r50_fpn, a box that overlaps its
# object by less than half is background.
_base_ = './mask_rcnn.py'

model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None),
    train_cfg=dict(rcnn=dict(assigner=dict(match_low_quality=False))))
