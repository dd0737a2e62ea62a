"""Panoptic segmentation: synthetic shapes in COCO's format, and panoptic quality."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from conftest import NO_WORKERS, ROOT, SHORT
from mmengine.registry import DATASETS
from pycocotools.coco import COCO

from colonnade.datasets.segment_maps import read_segment_ids
from colonnade.engine.work_dir import Run
from colonnade.evaluation.panoptic_quality import PanopticQuality, compare_segments, summarize
from colonnade.models.trial_step import find_trial_error, has_masks, loads_segments
from colonnade.settings.dataset_paths import redirect_data_root
from colonnade.settings.reading import read_config

CONFIG = ROOT / 'configs/pmt/xcit_nano_12_p16_slim_shapes_panoptic.py'
SPLITS = ('train2017', 'val2017')
META = dict(classes=('disc', 'square', 'triangle', 'background'),
            thing_classes=('disc', 'square', 'triangle'))  # yapf: disable


@pytest.mark.parametrize('split', SPLITS)
def test_segments_agree_with_instances(shapes: Path, split: str) -> None:
    folder = shapes / 'coco/annotations'
    panoptic = json.loads((folder / f'panoptic_{split}.json').read_text())
    coco = COCO(folder / f'instances_{split}.json')
    assert [(c['id'], c['name'], c['isthing'])
            for c in panoptic['categories']] == [(1, 'disc', 1), (2, 'square', 1),
                                                 (3, 'triangle', 1), (4, 'background', 0)]
    assert panoptic['images'] == list(coco.imgs.values())
    for annotation in panoptic['annotations']:
        path = folder / f'panoptic_{split}' / annotation['file_name']
        ids = read_segment_ids(cv2.imread(str(path))[..., ::-1])
        *things, stuff = annotation['segments_info']
        assert (ids > 0).all() and stuff['category_id'] == 4
        instances = coco.imgToAnns[annotation['image_id']]
        for segment, instance in zip(things, instances, strict=True):
            mask = ids == segment['id']
            assert np.array_equal(mask, coco.annToMask(instance))
            for key in ('area', 'bbox', 'category_id', 'iscrowd'):
                assert segment[key] == instance[key], key
        assert stuff['area'] == (ids == stuff['id']).sum()


def test_ids_have_three_channels() -> None:
    assert read_segment_ids(np.array([[[1, 2, 3]]], np.uint8)) == 1 + 2 * 256 + 3 * 65536


def test_quality_by_hand() -> None:
    """Two things and stuff: one matches by 3/4, one is missed, one is wrong, stuff by 9/12."""
    truth = np.array([[1, 1, 1, 1, 0, 0], [2, 2, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3]])
    segments = [dict(id=1, label=0), dict(id=2, label=0), dict(id=3, label=1)]
    predicted = np.array([[5, 5, 5, 7, 5, 5], [6, 7, 7, 7, 7, 7], [7, 7, 7, 7, 7, 8]])
    stats = compare_segments(truth, segments, predicted, {5: 0, 6: 1, 7: 1, 8: 0}, 2)
    # unlabeled pixels of a prediction do not count
    assert np.allclose(stats, [[3 / 4, 1, 1, 1], [9 / 12, 1, 1, 0]])
    assert summarize(stats[:1]) == pytest.approx(dict(PQ=37.5, SQ=75., RQ=50.))
    assert summarize(stats) == pytest.approx(dict(PQ=43.75, SQ=75., RQ=175 / 3))


def test_crowds_and_unlabeled_pixels_are_no_errors() -> None:
    truth = np.array([[1, 1, 0, 0]])
    crowd = [dict(id=1, label=0, iscrowd=1)]
    for predicted, false_positives in (([[1, 1, 2, 2]], 0), ([[1, 1, 1, 1]], 0)):
        labels = dict.fromkeys(np.unique(predicted).tolist(), 0)
        stats = compare_segments(truth, crowd, np.array(predicted), labels, 1)
        assert stats.tolist() == [[0, 0, false_positives, 0]]
    assert compare_segments(truth, crowd, truth + 2, {2: 1, 3: 1}, 2)[1].tolist() == [0, 0, 1, 0]


def test_perfect_predictions(shapes: Path) -> None:
    """Ground truth, loaded as for training, has a quality of 100."""
    cfg = read_config(CONFIG)
    redirect_data_root(cfg, shapes / 'coco')
    dataset = DATASETS.build(cfg.train_dataloader.dataset | dict(
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(img='val2017/', seg='annotations/panoptic_val2017/'),
        pipeline=[step for step in cfg.train_pipeline if step.type != 'RandomFlip']))
    folder = shapes / 'coco/annotations'
    metric = PanopticQuality(
        str(folder / 'panoptic_val2017.json'), str(folder / 'panoptic_val2017'), classwise=True)
    metric.dataset_meta = META
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        segments = sample.gt_sem_seg.sem_seg.clone().long()
        for number, mask in enumerate(sample.gt_instances.masks.masks, 1):
            segments[0, torch.from_numpy(mask).bool()] += 1000 * number
        metric.process(None, [
            dict(img_id=index + 1, pred_panoptic_seg=dict(sem_seg=segments))
        ])  # yapf: disable
    metrics = metric.evaluate(len(dataset))
    assert metrics.pop('coco_panoptic/PQ_st') == 100
    assert set(metrics.values()) == {100.}
    assert 'coco_panoptic/background_PQ' in metrics


def test_instances_are_not_panoptic(shapes: Path) -> None:
    path = shapes / 'coco/annotations/instances_val2017.json'
    with pytest.raises(ValueError, match='has no panoptic annotations'):
        PanopticQuality(str(path), str(shapes))


def test_training(shapes: Path, tmp_path: Path, run_tool: Callable) -> None:
    data = ['--data-root', shapes / 'coco', '--work-dir', tmp_path / 'run']
    run_tool('train', CONFIG, *data, *SHORT, 'train_cfg.val_interval=1', *NO_WORKERS)
    run_tool('test', CONFIG, tmp_path / 'run/iter_2.pth', *data, '--out', tmp_path / 'metrics.json',
             '--cfg-options', *NO_WORKERS)  # yapf: disable
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    expected = {
        f'coco_panoptic/{q}{part}'
        for q in ('PQ', 'SQ', 'RQ')
        for part in ('', '_th', '_st')
    }
    assert metrics.keys() >= expected
    assert all(0 <= metrics[name] <= 100 for name in expected)

    assert Run(tmp_path / 'run').best  # by PQ
    moved = (tmp_path / 'run').rename(tmp_path / 'moved')
    run_tool('test', moved, '--data-root', shapes / 'coco', '--cfg-options', *NO_WORKERS)
    assert len(list(moved.glob('*/metrics.json'))) == 1 and not (tmp_path / 'run').exists()
    image = next((shapes / 'coco/val2017').iterdir())
    run_tool('predict', moved, image, '--out', tmp_path / 'predictions')
    assert (tmp_path / 'predictions/results.json').exists()


@pytest.mark.parametrize('name', ['pmt/xcit_nano_12_p16', 'eomt/plain_vit_nano_12'])
def test_trial_step(name: str) -> None:
    cfg = read_config(ROOT / f'configs/{name}_slim_shapes_panoptic.py')
    assert has_masks(cfg) and loads_segments(cfg)
    assert find_trial_error(cfg) is None


def test_folder_without_checkpoints(tmp_path: Path, run_tool: Callable) -> None:
    read_config(CONFIG).dump(tmp_path / 'config.py')
    with pytest.raises(SystemExit, match='nor the work dir of a run: it has no best or last'):
        run_tool('predict', tmp_path, ROOT / 'docs/images/predict_labels.jpg', '--out',
                 tmp_path / 'out')
