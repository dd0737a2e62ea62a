"""A hook and a transform with which a process of several, or a worker, fails for real."""
from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from mmcv.transforms import BaseTransform
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, TRANSFORMS
from mmengine.runner import Runner
from torch.utils.data import get_worker_info


def fail() -> None:
    raise RuntimeError('a fault of one process')


def exhaust_memory() -> None:
    """Lower the limit of this process to what it has, and ask for more."""
    pages = int(Path('/proc/self/statm').read_text().split()[0])
    size = pages * os.sysconf('SC_PAGE_SIZE') + 2**26
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.getrlimit(resource.RLIMIT_AS)[1]))
    torch.ones(2**30)


def loop() -> None:
    while True:
        pass


FAULTS: dict[str, Callable[[], None]] = dict(
    kill=lambda: os.kill(os.getpid(), signal.SIGKILL),
    stop=lambda: os.kill(os.getpid(), signal.SIGSTOP),
    fail=fail,
    memory=exhaust_memory,
    loop=loop)


@HOOKS.register_module()
class ProcessFault(Hook):
    """Fails in one process before an iteration of a training or a test, or when saving.

    Args:
        fault: Key of ``FAULTS``.
        rank: Rank of the process.
        iteration: Before which it fails, from 1 on; -1: in saving.
    """
    priority = 'LOW'

    def __init__(self, fault: str, rank: int, iteration: int = 3) -> None:
        self.fault, self.rank, self.iteration = fault, rank, iteration

    def before_train_iter(self, runner: Runner, *_: Any, **__: Any) -> None:
        if runner.rank == self.rank and runner.iter + 1 == self.iteration:
            FAULTS[self.fault]()

    def before_test_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        if runner.rank == self.rank and batch_idx + 1 == self.iteration:
            FAULTS[self.fault]()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if runner.rank == self.rank and self.iteration == -1:
            FAULTS[self.fault]()


@TRANSFORMS.register_module()
class SampleFault(BaseTransform):
    """Fails with each sample from one on.

    Args:
        fault: Key of ``FAULTS``.
        count: Number of the first, of those that a process or worker gets.
        rank: Rank of the process.
    """

    def __init__(self, fault: str, count: int, rank: int = 0) -> None:
        self.fault, self.count, self.rank = fault, count, rank
        self.number = 0

    def transform(self, results: dict) -> dict:
        info = get_worker_info()
        self.number += 1
        mine = int(os.environ.get('RANK', 0)) == self.rank and (info is None or info.id == 0)
        if mine and self.number >= self.count:
            FAULTS[self.fault]()
        return results
