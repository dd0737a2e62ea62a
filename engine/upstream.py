"""What training needs of other packages that has no public name.

Each function says why. ``tests/test_upstream.py`` looks whether the installed versions still have
what is used here, read in mmengine 0.10 and torch 2.15.
"""
from __future__ import annotations

from typing import Any

from mmengine.dataset import InfiniteSampler
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from mmengine.visualization import BaseVisBackend
from torch import Tensor
from torch.utils.data import DataLoader


def is_resuming(runner: Runner) -> bool:
    """Return True if a runner goes on from a checkpoint; its config may say otherwise."""
    return runner._resume


def get_start(runner: Runner) -> str | None:
    """Return the checkpoint or weights that a runner starts from, None if it has yet to look."""
    return runner._load_from


def set_start(runner: Runner, path: str) -> None:
    """Set what a runner starts from: mmengine takes the newest checkpoint, damaged or not."""
    runner._load_from = path


def get_backends(runner: Runner) -> dict[str, BaseVisBackend]:
    """Return what a runner's visualizer writes to: backends can only be named in its config."""
    return runner.visualizer._vis_backends


def end_workers_of(loader: DataLoader) -> None:
    """Drop the pass of a loader with persistent workers, which nothing public ends."""
    loader._iterator = None


def get_indices_of_rank(sampler: InfiniteSampler) -> Any:
    """Return an iterator over a sampler's indices from the start, which it makes only once."""
    return sampler._indices_of_rank()


def update_val_interval(loop: EpochBasedTrainLoop | IterBasedTrainLoop) -> None:
    """Set the interval of evaluations that holds now, as a loop does after each iteration."""
    loop._decide_current_val_interval()


def identify_storage(tensor: Tensor) -> int:
    """Return a number that tensors of one storage share; its address is 0 for empty ones."""
    return tensor.untyped_storage()._cdata
