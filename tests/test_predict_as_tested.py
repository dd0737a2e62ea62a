"""``tools/predict.py`` writes what ``tools/test.py`` evaluates, on real images."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import NO_WORKERS
from helpers.random_models import random_checkpoint
from PIL import Image


def test_instances_are_those_that_mmdet_evaluates(run_tool: Callable, real_data: dict[str, Path],
                                                  tmp_path: Path) -> None:
    """Entry by entry, with the ids of COCO's file, hence metrics too."""
    leaf, images = 'mask_rcnn/xcit_nano_12_p16_slim_coco', real_data['coco'] / 'val2017'
    checkpoint = random_checkpoint(leaf, tmp_path / 'a.pth')
    run_tool('test', leaf, checkpoint, '--data-root', real_data['coco'], '--work-dir', tmp_path,
             '--cfg-options', *NO_WORKERS[4:], 'test_dataloader.dataset.indices=3',
             f'test_evaluator.outfile_prefix={tmp_path}/a')
    expected = json.loads((tmp_path / 'a.segm.json').read_text())
    annotations = real_data['coco'] / 'annotations/instances_val2017.json'
    chosen = sorted({entry['image_id'] for entry in expected})
    run_tool('predict', leaf, checkpoint, *(images / f'{number:012}.jpg' for number in chosen),
             '--annotations', annotations, '--out', tmp_path / 'out', '--device', 'cpu')
    found = json.loads((tmp_path / 'out/results.json').read_text())
    assert len(found) > 50

    def key(entry: dict[str, Any]) -> str:
        return json.dumps(entry, sort_keys=True)

    assert sorted(map(key, found)) == sorted(map(key, expected))


def test_label_maps_are_those_that_mmseg_writes(run_tool: Callable, real_data: dict[str, Path],
                                                tmp_path: Path) -> None:
    """For ADE20k's server, which counts labels from 1."""
    leaf = 'sem_fpn/xcit_nano_12_p16_slim_ade20k'
    checkpoint = random_checkpoint(leaf, tmp_path / 'a.pth')
    run_tool('test', leaf, checkpoint, '--data-root', real_data['ade'], '--work-dir', tmp_path,
             '--cfg-options', *NO_WORKERS[4:], 'test_dataloader.dataset.indices=2',
             f'test_evaluator.output_dir={tmp_path}/expected')
    expected = sorted((tmp_path / 'expected').iterdir())
    images = real_data['ade'] / 'images/validation'
    run_tool('predict', leaf, checkpoint, *(images / f'{path.stem}.jpg' for path in expected),
             '--first-label', 1, '--outputs', 'labels', '--out', tmp_path / 'out', '--device',
             'cpu')
    assert len(expected) == 2
    for path in expected:
        labels = np.array(Image.open(path))
        assert len(np.unique(labels)) > 3
        np.testing.assert_array_equal(
            np.array(Image.open(tmp_path / 'out/labels' / path.name)), labels)
