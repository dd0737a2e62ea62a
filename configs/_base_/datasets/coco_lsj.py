# COCO 2017 instances with large-scale jitter (arXiv 2012.07177): 0.1 to 2 times 1024 x 1024. Tested
# at 1024 for the longer side. Recipes pad to squares, whose positions are then always the same.
# Difference: mmdet's Mask2Former resizes images in float32, the authors and this file in 8 bits.
_base_ = './coco_640.py'

sizes = dict(
    RandomResize=dict(scale=(1024, 1024)),
    RandomCrop=dict(crop_size=(1024, 1024)),
    Resize=dict(scale=(1024, 1024)))
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
