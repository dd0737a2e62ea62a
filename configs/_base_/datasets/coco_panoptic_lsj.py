# COCO 2017 panoptic segments with large-scale jitter at 1024 x 1024, see coco_lsj.py.
_base_ = './coco_panoptic.py'

sizes = dict(
    RandomResize=dict(scale=(1024, 1024)),
    RandomCrop=dict(crop_size=(1024, 1024)),
    Resize=dict(scale=(1024, 1024)))
train_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.train_pipeline]
test_pipeline = [dict(step, **sizes.get(step.type, {})) for step in _base_.test_pipeline]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
