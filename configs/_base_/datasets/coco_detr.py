# COCO 2017 boxes as DETR and its descendants train: images are cropped at any width, and those
# without objects take part.
_base_ = './coco_boxes.py'

shrink = dict(
    type='RandomChoiceResize', scales=[(400, 4200), (500, 4200), (600, 4200)], keep_ratio=True)
resize_or_crop = dict(
    type='RandomChoice', transforms=[[_base_.resize], [shrink, _base_.crop, _base_.resize]])
train_pipeline = [
    resize_or_crop if step.type == 'RandomChoice' else step for step in _base_.train_pipeline
]
train_dataloader = dict(
    dataset=dict(filter_cfg=dict(filter_empty_gt=False), pipeline=train_pipeline))
