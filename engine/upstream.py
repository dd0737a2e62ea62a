"""Access to features of other packages that have no public name.

``tests/test_upstream.py`` checks that the installed versions still have them. They were read in
mmengine 0.10 and torch 2.15.
"""
from __future__ import annotations

from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.runner import Runner
from mmengine.visualization import BaseVisBackend
from torch.utils.data import DataLoader

ENVIRONMENT_LOGGER = Runner._log_env.__name__  # method that logs environment and config


def is_resuming(runner: Runner) -> bool:
    """Return True if a runner resumes from a checkpoint; its config may say otherwise."""
    return runner._resume


def get_start(runner: Runner) -> str | None:
    """Return the checkpoint or weights that a runner starts from, or None if not set yet."""
    return runner._load_from


def set_start(runner: Runner, path: str) -> None:
    """Set the start of a runner: mmengine uses the latest checkpoint, damaged or not."""
    runner._load_from = path


def get_backends(runner: Runner) -> dict[str, BaseVisBackend]:
    """Return the backends of a runner's visualizer, which can only be set in its config."""
    return runner.visualizer._vis_backends


def stop_workers(loader: DataLoader) -> None:
    """End the workers of a loader with persistent workers, for which torch has no method."""
    loader._iterator = None


def get_indices_of_rank(sampler: InfiniteSampler) -> Any:
    """Return an iterator over a sampler's indices from the start, which it creates only once."""
    return sampler._indices_of_rank()
