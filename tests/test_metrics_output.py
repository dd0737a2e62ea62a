"""tools/test.py writes what was computed, where it was said, and nothing else."""
from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAYOUTS, NO_WORKERS, config, latest_log
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS, MODELS

from colonnade.settings.reading import read_config


@pytest.fixture(scope='module')
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random models, by their heads."""
    folder = tmp_path_factory.mktemp('random')
    for head in ('mask_rcnn', 'sem_fpn'):
        state = MODELS.build(read_config(config(head)).model).state_dict()
        torch.save(dict(state_dict=state), folder / f'{head}.pth')
    return folder


@pytest.fixture
def evaluate(weights: Path, shapes: Path, tmp_path: Path,
             run_tool: Callable) -> Callable[..., dict[str, Any]]:
    """Evaluate a random model; returns the metrics that were written."""

    def run(head: str, *options: str, out: Path = tmp_path / 'out/m.json') -> dict[str, Any]:
        run_tool('test', config(head), weights / f'{head}.pth', '--data-root',
                 shapes / LAYOUTS[head], '--work-dir', tmp_path / 'run', '--out', out,
                 '--cfg-options', *options, 'test_dataloader.dataset.indices=1', *NO_WORKERS)
        return json.loads(out.read_text())['metrics']

    return run


def test_work_dir_instead_of_config_and_checkpoint(weights: Path, shapes: Path, tmp_path: Path,
                                                   run_tool: Callable) -> None:
    cfg = read_config(config('sem_fpn'))
    (tmp_path / 'run.py').write_text(cfg.dump())
    (tmp_path / 'last_checkpoint').write_text(str(weights / 'sem_fpn.pth'))
    run_tool('test', tmp_path, '--data-root', shapes / 'ade', '--out', tmp_path / 'm.json',
             '--cfg-options', f'work_dir={tmp_path}', 'test_dataloader.dataset.indices=1',
             *NO_WORKERS)
    report = json.loads((tmp_path / 'm.json').read_text())
    assert report['checkpoint'] == str(weights / 'sem_fpn.pth') and 'mIoU' in report['metrics']


NOTHING = 'model.test_cfg.rcnn.score_thr=1.0'  # no detection


@pytest.mark.parametrize('options, keys', [
    ([NOTHING], {f'coco/{k}_{m}' for k in ('bbox', 'segm') for m in ('mAP', 'mAP_50', 'mAP_75')}),
    ([NOTHING, 'test_evaluator.metric=segm', 'test_evaluator.prefix=drawn'],
     {'drawn/segm_mAP', 'drawn/segm_mAP_50', 'drawn/segm_mAP_75'}),
    ([NOTHING, 'test_evaluator.metric=bbox', 'test_evaluator.metric_items=[mAP_50,AR@100]'],
     {'coco/bbox_mAP_50'}),
    ([NOTHING, 'test_evaluator.metric=proposal'], set()),
    ([NOTHING, 'test_evaluator.format_only=True', 'test_evaluator.outfile_prefix={tmp}/found'],
     set()),
])  # yapf: disable
def test_map_is_zero_without_detections(options: list[str], keys: set[str], evaluate: Callable,
                                        tmp_path: Path) -> None:
    metrics = evaluate('mask_rcnn', *(option.format(tmp=tmp_path) for option in options))
    assert metrics == dict.fromkeys(keys, 0.)
    log = latest_log(tmp_path / 'run')
    assert 'ERROR' not in log
    if keys:
        assert 'nothing was detected in any image: no mAP' in log


def test_computed_metrics_are_written(evaluate: Callable) -> None:
    metrics = evaluate('mask_rcnn', 'model.test_cfg.rcnn.score_thr=0.0',
                       'test_evaluator.metric=[bbox,proposal]', 'test_evaluator.prefix=drawn')
    assert {'drawn/bbox_mAP', 'drawn/AR@100'} <= metrics.keys()
    assert all(key.startswith('drawn/') and 'segm' not in key for key in metrics)


@METRICS.register_module(force=True)
class Odd(BaseMetric):
    """A metric with values that are not numbers, as mmdet's for captions and retrieval."""

    def __init__(self, iou_metrics: list[str]) -> None:
        super().__init__()  # a setting of the metric that it replaces

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        self.results += [None] * len(data_samples)

    def compute_metrics(self, results: list) -> dict[str, Any]:
        return {
            'recall': {1: {'all': np.float32(0.5), 'none': math.nan}},
            'copypaste': '0.1 0.2',
            'tensor': torch.tensor(0.25),
            'several': np.ones(2),
        }  # yapf: disable


def test_non_numeric_metrics_are_written(evaluate: Callable,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate('sem_fpn', 'test_evaluator.type=Odd') == {
        'recall': {'1': {'all': 0.5, 'none': None}},
        'copypaste': '0.1 0.2',
        'tensor': 0.25,
        'several': [1, 1],
    }  # yapf: disable
    printed = capsys.readouterr().out
    assert re.search(r"^recall +\{'1': \{'all': 0.5, 'none': None}}$", printed, re.MULTILINE)


def test_output_path_is_checked_first(evaluate: Callable, tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'file').touch()
    for out, named in ((tmp_path / 'file/m.json', tmp_path / 'file'), (tmp_path, tmp_path)):
        with pytest.raises(SystemExit) as stopped:
            evaluate('sem_fpn', out=out)
        assert str(named) in str(stopped.value)
        assert 'Iter(test)' not in capsys.readouterr().out


def test_metrics_are_printed_if_writing_fails(evaluate: Callable, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:

    def full(self: Path, *_: Any, **__: Any) -> None:
        self.touch()
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('colonnade.evaluation.testing.check_writable',
                        lambda path: path.parent.mkdir())
    monkeypatch.setattr(Path, 'write_text', full)
    with pytest.raises(SystemExit, match='cannot write the metrics: .*No space left'):
        evaluate('sem_fpn')
    assert 'mIoU  ' in capsys.readouterr().out
    assert list((tmp_path / 'out').iterdir()) == []
