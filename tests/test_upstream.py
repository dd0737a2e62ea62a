"""Private names of other packages that the product uses exist and have the same meaning."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.runner import Runner
from mmengine.visualization import LocalVisBackend, Visualizer
from torch.utils.data import DataLoader

from colonnade.engine import upstream


def test_runner_start(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)
    runner = Runner(torch.nn.Identity(), str(tmp_path), load_from='a.pth', resume=True,
                    experiment_name='upstream')  # yapf: disable
    assert upstream.is_resuming(runner) and upstream.get_start(runner) == 'a.pth'
    upstream.set_start(runner, 'b.pth')
    assert upstream.get_start(runner) == 'b.pth'


def test_visualizer_backends(tmp_path: Any) -> None:
    visualizer = Visualizer(vis_backends=[dict(type='LocalVisBackend')], save_dir=str(tmp_path))
    backend, = upstream.get_backends(SimpleNamespace(visualizer=visualizer)).values()
    assert isinstance(backend, LocalVisBackend)


def test_persistent_workers() -> None:
    loader = DataLoader(range(4), num_workers=1, persistent_workers=True)
    next(iter(loader))
    assert loader._iterator is not None
    upstream.stop_workers(loader)
    assert loader._iterator is None


def test_sampler_restarts() -> None:
    sampler = InfiniteSampler(range(4), shuffle=False)
    assert next(sampler.indices) == 0 and next(sampler.indices) == 1
    assert next(upstream.get_indices_of_rank(sampler)) == 0
