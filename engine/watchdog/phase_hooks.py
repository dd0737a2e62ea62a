"""The phase that a process is in, as hooks of a runner see it."""
from __future__ import annotations

import time
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from .hang_detection import BUSY, DATA, GATHERS, STEP


class Progress:
    """The phase of a process, which another thread may read.

    Attributes:
        phase: See :mod:`.hang_detection`.
        iteration: The one that it does, or waits for.
        since: When the phase began, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.phase, self.iteration, self.since = BUSY, 0, time.monotonic()

    def enter(self, phase: str, iteration: int | None = None) -> None:
        """Begin a phase."""
        self.phase, self.since = phase, time.monotonic()
        if iteration is not None:
            self.iteration = iteration


class Phases(Hook):
    """Record the phase of a process, as the first and as the last of all hooks.

    What hooks do between two iterations, such as saving, may take any time.

    Args:
        progress: Where the phase is recorded.
        is_first: Whether this is the first of all hooks.
    """

    def __init__(self, progress: Progress, *, is_first: bool) -> None:
        self.progress, self.is_first = progress, is_first
        self.priority = 'HIGHEST' if is_first else 'LOWEST'

    def _before_epoch(self, runner: Runner, mode: str = 'train') -> None:
        if not self.is_first:
            self.progress.enter(DATA, runner.iter + 1 if mode == 'train' else 1)

    def _before_iter(self, runner: Runner, batch_idx: int, *_: Any, mode: str = 'train',
                     **__: Any) -> None:  # yapf: disable
        if self.is_first:
            self.progress.enter(STEP, (runner.iter if mode == 'train' else batch_idx) + 1)

    def _after_iter(self, runner: Runner, batch_idx: int, *_: Any, mode: str = 'train',
                    **__: Any) -> None:  # yapf: disable
        loop = None if mode == 'train' else getattr(runner, f'{mode}_loop')
        if loop is not None and batch_idx + 1 == len(loop.dataloader):
            self.progress.enter(GATHERS)  # also for hooks that wait for all, such as StopOnSignal
        elif self.is_first:
            self.progress.enter(BUSY)
        else:
            self.progress.enter(DATA, (batch_idx if loop else runner.iter) + 2)

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        if self.is_first:
            self.progress.enter(BUSY)

    def after_val(self, runner: Runner) -> None:
        """Enter the phase in which training goes on."""
        if not self.is_first:
            self.progress.enter(DATA, runner.iter + 1)

    def after_train(self, runner: Runner) -> None:
        """Enter the phase of what is done at the end."""
        if self.is_first:
            self.progress.enter(BUSY)
