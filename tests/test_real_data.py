"""Real COCO and ADE20k images, including grayscale and empty ones and crowd regions."""
from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import LAYOUTS, NO_VAL, NO_WORKERS, ROOT, latest_log
from mmdet.structures.mask import encode_mask_results
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

DATA_NAMES = {'coco': 'coco', 'ade': 'ade20k'}
METRICS = {'coco': ('coco/bbox_mAP', 'coco/segm_mAP'), 'ade': ('mIoU', )}


def config(head: str) -> Path:
    return ROOT / f'configs/{head}/xcit_nano_12_p16_slim_{DATA_NAMES[LAYOUTS[head]]}.py'


def evaluate(run_tool: Callable, head: str, data_root: Path, work_dir: Path, *options:
             str) -> dict[str, float]:
    """Return the metrics of the latest checkpoint in the work dir."""
    out, checkpoint = work_dir / 'metrics.json', (work_dir / 'last_checkpoint').read_text()
    run_tool('test', config(head), checkpoint, '--data-root', data_root, '--work-dir', work_dir,
             '--out', out, '--cfg-options', *NO_WORKERS, *options)
    return json.loads(out.read_text())['metrics']


@pytest.mark.parametrize('head', [pytest.param('mask_rcnn', marks=pytest.mark.slow), 'sem_fpn'])
def test_full_epoch(head: str, real_data: dict[str, Path], tmp_path: Path,
                    run_tool: Callable) -> None:
    """Every image, also without objects, is used for training once and for evaluation."""
    layout = LAYOUTS[head]
    images = 83 if layout == 'coco' else 19
    options = [f'train_cfg.max_iters={-(-images // 8)}', *NO_VAL, *NO_WORKERS[:1]]
    smaller = []
    if layout == 'ade':
        options += [
            'train_dataloader.dataset.pipeline.2.scale=(512,128)',
            'train_dataloader.dataset.pipeline.3.crop_size=(128,128)',
            'model.data_preprocessor.size=(128,128)'
        ]
        smaller = ['test_dataloader.dataset.pipeline.1.scale=(512,128)']
    else:
        options += [
            'train_dataloader.dataset.filter_cfg.filter_empty_gt=False',
            'train_dataloader.dataset.pipeline.3.scale=(192,128)'
        ]
    run_tool('train', config(head), '--data-root', real_data[layout], '--work-dir', tmp_path,
             '--cfg-options', *options)
    assert 'loss: nan' not in latest_log(tmp_path)

    metrics = evaluate(run_tool, head, real_data[layout], tmp_path, *smaller)

    for metric in METRICS[layout]:
        assert 0 <= metrics[metric] <= 100


def copy_first_images(real_data: dict[str, Path], layout: str, out: Path, number: int) -> Path:
    """Copy the first training images with objects as training and validation set."""
    source = real_data[layout]
    if layout == 'ade':
        for kind in ('images', 'annotations'):
            for path in sorted((source / kind / 'training').iterdir())[:number]:
                for split in ('training', 'validation'):
                    link = out / kind / split / path.name
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path)
        return out
    content = json.loads((source / 'annotations/instances_train2017.json').read_text())
    with_objects = {a['image_id'] for a in content['annotations'] if not a['iscrowd']}
    content['images'] = [i for i in content['images'] if i['id'] in with_objects][:number]
    chosen = {image['id'] for image in content['images']}
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] in chosen]
    (out / 'annotations').mkdir(parents=True)
    for split in ('train2017', 'val2017'):
        (out / split).symlink_to(source / 'train2017')
        (out / f'annotations/instances_{split}.json').write_text(json.dumps(content))
    return out


def simulate_detector(truth: COCO, seed: int) -> list[dict]:
    """Return objects up to three times, moved, some with another class or equal scores."""
    rng, found = np.random.default_rng(seed), []
    for annotation in truth.anns.values():
        truth_mask = truth.annToMask(annotation)
        for shift in rng.integers(-6, 7, (rng.integers(4), 2)):
            rle = encode_mask_results([np.roll(truth_mask, shift, (0, 1)).astype(bool)])[0]
            if truth_mask.any():
                found.append(
                    dict(
                        image_id=annotation['image_id'],
                        category_id=annotation['category_id'] if rng.random() < 0.8 else 1,
                        bbox=(annotation['bbox'] + rng.normal(0, 2, 4).clip(-5, 0)).tolist(),
                        segmentation=dict(rle, counts=rle['counts'].decode()),
                        score=0.5 if rng.random() < 0.1 else rng.random()))
    return found


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_faster_coco_eval_equals_pycocotools(kind: str, real_data: dict[str, Path]) -> None:
    """Data include crowd regions, ties and duplicate detections."""
    faster = pytest.importorskip('faster_coco_eval')
    file = str(real_data['coco'] / 'annotations/instances_val2017.json')
    results = simulate_detector(COCO(file), seed=0)
    if kind == 'segm':
        for result in results:
            del result['bbox']
    scores = []
    for dataset, evaluation in ((COCO, COCOeval), (faster.COCO, faster.COCOeval_faster)):
        truth = dataset(file)
        evaluated = evaluation(truth, truth.loadRes(copy.deepcopy(results)), kind)
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
        scores.append((evaluated.eval['precision'], np.array(evaluated.stats[:12])))
    (precision, stats), (faster_precision, faster_stats) = scores
    assert 0.1 < stats[0] < 0.9
    np.testing.assert_allclose(faster_precision, precision, rtol=0, atol=1e-15)
    np.testing.assert_allclose(faster_stats, stats, rtol=0, atol=1e-15)


ONE_SCALE = 'train_dataloader.dataset.pipeline.2.ratio_range=(1.0,1.0)'


@pytest.mark.slow
@pytest.mark.parametrize('head, metric, min_value, options', [
    ('mask_rcnn', 'coco/segm_mAP_50', 0.5, []),
    ('sem_fpn', 'mIoU', 50, [ONE_SCALE]),
])
def test_overfit_four_images(head: str, metric: str, min_value: float, options: list[str],
                             real_data: dict[str,
                                             Path], tmp_path: Path, run_tool: Callable) -> None:
    data = copy_first_images(real_data, LAYOUTS[head], tmp_path / 'data', 4)
    run_tool('train', config(head), '--data-root', data, '--work-dir', tmp_path, '--cfg-options',
             'train_dataloader.batch_size=4', *options, *NO_WORKERS)
    metrics = evaluate(run_tool, head, data, tmp_path)
    print({key: value for key, value in metrics.items() if 'mAP' in key or 'mIoU' in key})
    assert metrics[metric] >= min_value
    if head == 'mask_rcnn':  # scored by faster-coco-eval, as pycocotools does
        assert metrics == evaluate(run_tool, head, data, tmp_path, 'test_evaluator.type=CocoMetric')
