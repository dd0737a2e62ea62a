# LVIS v1 with large-scale jitter, as ViTDet (arXiv 2203.16527, appendix A.2). Images of rare
# classes are repeated.
import os

_base_ = './coco_lsj.py'

data_root = os.environ.get('COLONNADE_LVIS') or 'data/lvis'
lvis = dict(type='LVISInstances', data_root=data_root, data_prefix=dict(img=''))
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ClassBalancedDataset',
        oversample_thr=0.001,
        dataset=dict(
            _base_.train_dataloader.dataset, **lvis, ann_file='annotations/lvis_v1_train.json')))
val_dataloader = dict(dataset=dict(**lvis, ann_file='annotations/lvis_v1_val.json'))
test_dataloader = val_dataloader

val_evaluator = dict(
    _delete_=True, type='FasterLVISMetric', ann_file=data_root + '/annotations/lvis_v1_val.json')
test_evaluator = val_evaluator
