"""Evaluation in several processes gives the metrics of one process for any number of images."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import run_processes
from helpers.evaluate_shares import compute_all_metrics


@pytest.mark.slow
def test_metrics_of_several_processes(shapes: Path, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that mmengine's sampler repeats do not count."""
    monkeypatch.chdir(tmp_path)  # Processes exchange their results here.
    expected = json.loads(json.dumps(compute_all_metrics(shapes)))
    assert len({found['mIoU'] for name, found in expected.items() if 'sem_fpn' in name}) == 3
    assert 0 < expected['mask_rcnn 4']['coco/bbox_mAP'] < 1
    assert 0 < expected['panoptic 4']['coco_panoptic/PQ'] < 100
    for processes in (2, 3):
        out = tmp_path / f'{processes}.json'
        run_processes(processes, 'tests/helpers/evaluate_shares.py', shapes, out, out=tmp_path)
        assert json.loads(out.read_text()) == expected, processes
