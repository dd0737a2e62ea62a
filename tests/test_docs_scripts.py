"""Scripts of the docs that train and measure models."""
from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from conftest import NO_WORKERS, ROOT
from helpers.random_models import random_checkpoint

LEAF = 'sem_fpn/xcit_nano_12_p16_slim_shapes'
OPTIONS = ['train_dataloader.batch_size=2', *NO_WORKERS]


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch,
               capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a script of docs/ with options, and return what it prints."""

    def run(name: str, *arguments: object) -> str:
        script = str(ROOT / 'docs' / name)
        monkeypatch.setattr(sys, 'argv', [script, *map(str, arguments)])
        runpy.run_path(script, run_name='__main__')
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_study_simplified_vit(shapes: Path, tmp_path: Path, run_tool: Callable,
                              monkeypatch: pytest.MonkeyPatch, run_script: Callable) -> None:
    started = []

    def run(tool: str, log: Path, *arguments: object, show: bool) -> None:
        started.append(log.parent.name)
        run_tool(tool.removesuffix('.py'), *arguments)

    monkeypatch.setattr('colonnade.tools.demo.run_tool', run)
    command = [tmp_path / 'runs', '--shapes', shapes, '--backbones', 'xcit', 'parallel',
               '--seeds', 3, '--iterations', 2, '--interval', 1, '--plot', tmp_path / 'a.png',
               '--cfg-options', *OPTIONS]  # yapf: disable
    printed = ''.join(run_script('study_simplified_vit.py', *command)
                      for _ in range(2)).splitlines()

    assert started == ['shapes_xcit_p16_seed3', 'shapes_parallel_p16_seed3']
    assert '| backbone | parameters | mIoU, shapes |' in printed
    assert sum(line.startswith('| parallel | 2,086,624 | ') for line in printed) == 2
    assert cv2.imread(str(tmp_path / 'a.png')).std() > 1


@pytest.mark.slow
def test_measure_models_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / 'rows.json'
    for _ in range(2):
        script = str(ROOT / 'docs/measure_models.py')
        arguments = [rows, '--heads', 'linear', '--backbones', 'xcit_small_12_p16', '--rounds', 1]
        monkeypatch.setattr(sys, 'argv', [script, *map(str, arguments)])
        runpy.run_path(script, run_name='__main__')
    printed = capsys.readouterr()
    assert list(json.loads(rows.read_text())) == ['linear/xcit_small_12_p16']
    assert printed.err.count('linear/xcit_small_12_p16') == 1  # the second call measured nothing
    assert re.search(r'linear/xcit_small_12_p16_40k_ade20k,22\.\d,2\d,\d', printed.out)


@pytest.mark.slow
def test_measure_steps(shapes: Path, run_script: Callable) -> None:
    printed = run_script('measure_steps.py', 'sem_fpn/xcit_nano_12_p16_slim_shapes', shapes / 'ade',
                         '--iterations', 8, '--rounds', 1)
    row = re.compile(r'^(colonnade|mmengine) +\d+\.\d{3} s, \d+\.\d% neither', re.MULTILINE)
    assert row.findall(printed) == ['colonnade', 'mmengine']


@pytest.mark.slow
def test_study_unlabeled(tmp_path: Path, run_script: Callable) -> None:
    printed = run_script('study_unlabeled.py', tmp_path / 'drawn', '--iterations', 6)
    assert re.findall(r'^(\w+) (with|without) unlabeled images', printed, re.MULTILINE) == [
        (head, use) for head in ('sem_fpn', 'mask_rcnn') for use in ('without', 'with')
    ]  # yapf: disable


@pytest.mark.slow
def test_measure_operators(run_script: Callable) -> None:
    printed = run_script('measure_operators.py', '--size', 64)
    assert '| linear layers |' in printed and '| depthwise convolutions |' in printed
    assert re.search(r'linear layers: \d+ GFLOP/s in the model, \d+ without .* \d+ for one',
                     printed)


@pytest.mark.slow
def test_measure_server(tmp_path: Path, run_script: Callable) -> None:
    weights = random_checkpoint(LEAF, tmp_path / 'a.pth')
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((64, 64, 3), np.uint8))
    printed = run_script('measure_server.py', LEAF, weights, tmp_path / 'a.png', '--clients', 1, 2,
                         '--requests', 4)  # yapf: disable
    assert '| 1 | 4 |' in printed and '| 2 | 4 |' in printed
    assert printed.endswith('status codes: 200 × 8\n')
