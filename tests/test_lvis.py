"""LVIS: dataset, metric, federated loss, and the scores of detectron2's cascades."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from mmdet.models.roi_heads import CascadeRoIHead
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from test_vitdet import small
from torch.nn import functional as F

from colonnade.evaluation.lvis_metric import FasterLVISMetric
from colonnade.heads import FederatedLoss
from colonnade.settings.reading import read_config

CLASSES = ('disc', 'square', 'triangle')
PREFIX = 'http://images.cocodataset.org/'


def write_lvis(shapes: Path, folder: Path, **changes: Any) -> None:
    """Write annotations of synthetic shapes in the format of LVIS, with their images."""
    (folder / 'annotations').mkdir(parents=True)
    for part in ('train', 'val'):
        name = f'{part}2017'
        (folder / name).symlink_to(shapes / 'coco' / name)
        content = json.loads((shapes / f'coco/annotations/instances_{name}.json').read_text())
        for image in content['images']:
            image |= dict(
                coco_url=f'{PREFIX}{name}/{image.pop("file_name")}', neg_category_ids=[],
                not_exhaustive_category_ids=[]) | changes  # yapf: disable
        for category, frequency in zip(content['categories'], 'rcf', strict=True):
            category |= dict(frequency=frequency, image_count=2)
        (folder / f'annotations/lvis_v1_{part}.json').write_text(json.dumps(content))


def evaluate(path: Path, objects: list[tuple[int, int, list[float], float]]) -> dict[str, float]:
    """Return the box metrics of objects: image, class, corners, score."""
    metric = FasterLVISMetric(str(path), 'bbox')
    metric.dataset_meta = dict(classes=CLASSES)
    for image in metric._coco_api.getImgIds():
        own = [each for each in objects if each[0] == image]
        predicted = dict(
            labels=torch.tensor([each[1] for each in own], dtype=torch.int64),
            bboxes=torch.tensor([each[2] for each in own]).reshape(-1, 4),
            scores=torch.tensor([each[3] for each in own]))
        metric.process({}, [dict(img_id=image, ori_shape=(64, 64), pred_instances=predicted)])
    return metric.compute_metrics(metric.results)


@pytest.mark.parametrize('neg, not_exhaustive, expected', [
    ([], [], 1.), ([3], [], 2 / 3), ([3], [3], 1.)])  # yapf: disable
def test_metric_counts_labeled_classes(neg: list[int], not_exhaustive: list[int], expected: float,
                                       tmp_path: Path) -> None:
    """A false triangle has the highest score in an image that may be labeled for triangles."""
    boxes = [[5., 5., 25., 25.], [30., 30., 60., 60.]]
    annotations = [
        dict(id=i + 1, image_id=i + 1, category_id=3, bbox=[x, y, X - x, Y - y], iscrowd=0,
             area=(X - x) * (Y - y)) for i, (x, y, X, Y) in enumerate(boxes)
    ]  # yapf: disable
    images: list[dict] = [
        dict(id=i, width=64, height=64, neg_category_ids=[], not_exhaustive_category_ids=[])
        for i in (1, 2, 3)
    ]
    images[2] |= dict(neg_category_ids=neg, not_exhaustive_category_ids=not_exhaustive)
    categories = [
        dict(id=i + 1, name=name, frequency=each)
        for i, (name, each) in enumerate(zip(CLASSES, 'rcf', strict=True))
    ]
    path = tmp_path / 'lvis.json'
    path.write_text(json.dumps(dict(images=images, annotations=annotations, categories=categories)))
    objects = [(1, 2, boxes[0], 0.8), (2, 2, boxes[1], 0.7), (3, 2, boxes[0], 0.9)]
    found = evaluate(path, objects)
    assert found['bbox_AP'] == found['bbox_APf'] == pytest.approx(expected, abs=2e-3)
    assert found['bbox_APr'] == found['bbox_APc'] == -1
    assert evaluate(path, []) == dict.fromkeys(found, 0)


def test_federated_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    loss = FederatedLoss(30, num_sampled=8, loss_weight=2)
    loss.set_image_counts([1] * 10 + [0] * 20)
    logits = torch.randn(5, 31, requires_grad=True)
    labels = torch.tensor([3, 3, 25, 30, 30])
    value = loss(logits, labels, torch.tensor([1., 1, 1, 1, 0]), avg_factor=4)
    value.backward()
    sampled = logits.grad.abs().sum(0) > 0
    assert sampled.sum() == 7  # the background is the eighth, and has no term
    assert sampled[[3, 25]].all() and not sampled[10:25].any() and not sampled[26:].any()
    targets = torch.zeros(5, 31)
    targets[torch.arange(3), labels[:3]] = 1
    expected = F.binary_cross_entropy_with_logits(logits, targets, reduction='none')
    torch.testing.assert_close(value, 2 * expected[:4, sampled].sum() / 4)
    drawn = torch.stack([loss.sample(labels) for _ in range(300)]).mean(0)
    assert drawn[[3, 25]].eq(1).all() and drawn[10:25].eq(0).all()
    assert (drawn[:3] - 5 / 9).abs().max() < 0.15
    scores = loss.get_activation(logits)
    torch.testing.assert_close(scores[:, :-1], logits[:, :-1].sigmoid())
    assert loss.get_accuracy(logits, labels)['acc_classes'].numel() == 1

    loss.set_image_counts([1, 4] + [0] * 28)
    drawn = torch.stack([loss.sample(labels[:0])[:2] for _ in range(10)])
    assert drawn.all()  # classes without images come last
    loss.num_sampled = 1
    drawn = torch.stack([loss.sample(labels[:0]) for _ in range(600)]).mean(0)
    assert drawn[:2].tolist() == pytest.approx([1 / 3, 2 / 3], abs=0.1)


@pytest.mark.parametrize('federated', [False, True])
def test_cascade_averages_scores(federated: bool) -> None:
    torch.manual_seed(0)
    cfg = small('cascade_vitdet')
    for stage in cfg.model.roi_head.bbox_head:
        stage.reg_class_agnostic = not federated
        if federated:
            stage.loss_cls = dict(type='FederatedLoss', num_classes=80)
    model = MODELS.build(cfg.model).eval()
    for head in model.roi_head.bbox_head:
        torch.nn.init.normal_(head.fc_cls.weight, std=3)
        torch.nn.init.normal_(head.fc_reg.weight, std=0.3)
    maps = tuple(torch.randn(2, 16, 64 >> i, 64 >> i) for i in range(5))
    corners = torch.rand(7, 4) * 100
    corners[:, 2:] += corners[:, :2] + 10
    rois = torch.cat((torch.tensor([0., 0, 0, 0, 1, 1, 1])[:, None], corners), dim=1)
    metas = [dict(img_shape=(256, 256))] * 2
    logits: list[torch.Tensor] = []
    for head in model.roi_head.bbox_head:
        head.register_forward_hook(lambda *call: logits.append(call[2][0]))
    with torch.no_grad():
        found = model.roi_head._refine_roi(maps, rois, metas, (4, 3))
        stages = list(logits)
        theirs = CascadeRoIHead._refine_roi(model.roi_head, maps, rois, metas, (4, 3))
    torch.testing.assert_close(found[0], theirs[0])
    for mine, other in zip(found[2], theirs[2], strict=True):
        torch.testing.assert_close(mine, other)
    activate = head.loss_cls.get_activation if federated else lambda each: each.softmax(1)
    mean = sum(activate(each) for each in stages) / 3
    torch.testing.assert_close(activate(torch.cat(found[1])), mean)
    assert not torch.allclose(activate(torch.cat(theirs[1])), mean, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize('head', ['vitdet', 'cascade_vitdet'])
def test_configs_train_and_test(head: str, shapes: Path, tmp_path: Path,
                                run_tool: Callable) -> None:
    """The shipped configs run; the backbone, the images and the classes are fewer."""
    write_lvis(shapes, tmp_path / 'lvis')
    base = ROOT / f'configs/{head}/vit_base_patch16_224_mae_100ep_lvis_lsj.py'
    cfg, tiny = read_config(base), small(head)
    cfg.merge_from_dict(dict(model=Config(dict(model=tiny.model)).model.to_dict()))
    cfg.model.data_preprocessor.pad_size_divisor = 128
    heads = cfg.model.roi_head.bbox_head
    published = read_config(base).model.roi_head.bbox_head
    for part, other in zip(*((each if isinstance(each, list) else [each])
                             for each in (heads, published)), strict=True):  # yapf: disable
        part.num_classes = 3
        part.loss_cls = dict(other.loss_cls, num_classes=3)
    cfg.model.roi_head.mask_head.num_classes = 3
    cfg.model.test_cfg.rcnn.score_thr = 0.
    train = cfg.train_dataloader.dataset.dataset
    for dataset in (train, cfg.val_dataloader.dataset, cfg.test_dataloader.dataset):
        dataset.metainfo = dict(classes=CLASSES)
        for step in dataset.pipeline:
            step.update({key: (128, 128) for key in ('scale', 'crop_size') if key in step})
            if step.type == 'LoadAnnotations':
                step.poly2mask = True
    cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
    cfg.param_scheduler = []
    cfg.dump(tmp_path / 'lvis.py')
    run_tool('train', tmp_path / 'lvis.py', '--data-root', tmp_path / 'lvis', '--work-dir',
             tmp_path / 'run', '--allow-external-files')
    log, = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {'lvis/bbox_AP', 'lvis/segm_APr'} <= records[-1].keys()


def test_sample_of_dataset(shapes: Path, tmp_path: Path) -> None:
    write_lvis(shapes, tmp_path / 'lvis')
    cfg = read_config(ROOT / 'configs/vitdet/vit_base_patch16_224_mae_100ep_lvis_lsj.py')
    dataset = cfg.val_dataloader.dataset
    dataset.update(data_root=str(tmp_path / 'lvis'), metainfo=dict(classes=CLASSES))
    from mmengine.registry import DATASETS
    built = DATASETS.build(dataset)
    sample: DetDataSample = built[0]['data_samples']
    assert isinstance(sample.gt_instances, InstanceData) and len(sample.gt_instances)
    assert Path(sample.img_path).parent.name == 'val2017'
