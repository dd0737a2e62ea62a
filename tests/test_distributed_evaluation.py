"""Several processes find the metrics that one finds, whatever number of images there is."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import run_processes
from helpers.evaluate_shares import all_metrics


@pytest.mark.slow
def test_shares_of_any_size(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mmengine's sampler repeats images until all processes have as many; these do not count."""
    monkeypatch.chdir(tmp_path)  # where processes leave their results for each other
    expected = json.loads(json.dumps(all_metrics(shapes)))
    assert len({found['mIoU'] for name, found in expected.items() if 'sem_fpn' in name}) == 3
    assert 0 < expected['mask_rcnn 4']['coco/bbox_mAP'] < 1
    for processes in (2, 3):
        out = tmp_path / f'{processes}.json'
        run_processes(processes, 'tests/helpers/evaluate_shares.py', shapes, out, out=tmp_path)
        assert json.loads(out.read_text()) == expected, processes
