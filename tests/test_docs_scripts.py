"""Scripts of the docs that train and measure models."""
from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import pytest
from conftest import NO_WORKERS, ROOT

OPTIONS = ['train_dataloader.batch_size=2', *NO_WORKERS]


@pytest.mark.slow
def test_study_simplified_vit(shapes: Path, tmp_path: Path, run_tool: Callable,
                              monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    started = []

    def run(tool: str, log: Path, *arguments: object, show: bool) -> None:
        started.append(log.parent.name)
        run_tool(tool.removesuffix('.py'), *arguments)

    monkeypatch.setattr('colonnade.tools.demo.run_tool', run)
    command = [tmp_path / 'runs', '--shapes', shapes, '--backbones', 'xcit', 'parallel',
               '--seeds', 3, '--iterations', 2, '--interval', 1, '--plot', tmp_path / 'a.png',
               '--cfg-options', *OPTIONS]  # yapf: disable
    for _ in range(2):
        script = str(ROOT / 'docs/study_simplified_vit.py')
        monkeypatch.setattr(sys, 'argv', [script, *map(str, command)])
        runpy.run_path(script, run_name='__main__')

    assert started == ['shapes_xcit_p16_seed3', 'shapes_parallel_p16_seed3']
    printed = capsys.readouterr().out.splitlines()
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
