"""What a process is at, as hooks of a runner see it."""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from .judging import BUSY, DATA, GATHERS, HOOKS, PATIENCE, STEP

TIMES_THE_FIRST = 2  # that iterations may take, as the first one of an epoch takes


class Progress:
    """Where a process stands; another thread may look at it.

    Attributes:
        phase: See :mod:`.judging`.
        iteration: The one that it does, or waits for.
        longest: That a phase of an iteration took so far, in seconds.
        tell: Is called when a phase begins or ends that the others should hear of at once.
    """

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        self.phase, self.iteration, self.longest, self.tell = BUSY, 0, 0., tell
        self.since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since this phase began."""
        return time.monotonic() - self.since

    def enter(self, phase: str, iteration: int | None = None) -> None:
        """Begin a phase."""
        if self.phase in (DATA, STEP):
            self.longest = max(self.longest, self.seconds)
        matters = {BUSY, GATHERS}.intersection((self.phase, phase))
        self.phase, self.since = phase, time.monotonic()
        if iteration is not None:
            self.iteration = iteration
        if matters:
            self.tell()


class Phases(Hook):
    """Notes where a process stands, as the first and as the last of all hooks.

    The first iteration of an epoch or an evaluation may take long: kernels are chosen, workers
    start. Those that follow may take twice as long.

    Args:
        progress: Where it is noted.
        is_first: Whether this is the first of all hooks.
    """

    def __init__(self, progress: Progress, *, is_first: bool) -> None:
        self.progress, self.is_first, self.is_warm = progress, is_first, False
        self.since = 0.  # when the iteration began
        self.interrupted = ''  # the phase that a checkpoint is saved in
        self.priority = 'HIGHEST' if is_first else 'LOWEST'

    def begin(self) -> None:
        """Something begins that may take long."""
        self.is_warm = False
        if self.is_first:
            self.progress.enter(BUSY)

    def before_iteration(self, iteration: int) -> None:
        """The images of an iteration are there; other hooks may wait for other processes."""
        if self.is_first and self.is_warm:
            self.progress.enter(STEP, iteration)
        self.since = time.monotonic()

    def after_iteration(self, iteration: int) -> None:
        """An iteration is done; ``iteration`` is the next."""
        if self.is_first and not self.is_warm:
            took = time.monotonic() - self.since
            self.progress.longest = max(self.progress.longest, took * TIMES_THE_FIRST / PATIENCE)
        self.is_warm = True
        self.progress.enter(HOOKS if self.is_first else DATA, iteration)

    def before_train_epoch(self, runner: Runner) -> None:
        """An epoch begins: its workers may have to start."""
        self.begin()

    def after_train_epoch(self, runner: Runner) -> None:
        """What is done between epochs may take long."""
        self.begin()

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """The images of an iteration are there."""
        self.before_iteration(runner.iter + 1)

    def after_train_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        """An iteration is done."""
        self.after_iteration(runner.iter + 2)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Writing may take long."""
        if self.is_first:
            self.interrupted = self.progress.phase
            self.progress.enter(BUSY)

    def after_save_checkpoint(self, runner: Runner) -> None:
        """Go on with what writing interrupted; a runner of mmengine does not say when it is done.
        """
        if self.is_first and self.interrupted:
            self.progress.enter(self.interrupted)
            self.interrupted = ''

    def after_train(self, runner: Runner) -> None:
        """The rest is no iteration."""
        self.begin()

    def before_val(self, runner: Runner) -> None:
        """An evaluation begins."""
        self.begin()

    def before_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """The images of a batch are there."""
        self.before_iteration(batch_idx + 1)

    def after_val_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        """A batch is evaluated."""
        self.after_evaluated(batch_idx, len(runner.val_loop.dataloader))

    def after_val_epoch(self, runner: Runner, metrics: Any = None) -> None:
        """Results are computed."""
        self.begin()

    def after_val(self, runner: Runner) -> None:
        """Training goes on where it was."""
        self.is_warm = True
        if not self.is_first:
            self.progress.enter(DATA, runner.iter + 1)

    def before_test(self, runner: Runner) -> None:
        """A test begins."""
        self.begin()

    def before_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """The images of a batch are there."""
        self.before_iteration(batch_idx + 1)

    def after_test_iter(self, runner: Runner, batch_idx: int, *_: Any, **__: Any) -> None:
        """A batch is evaluated."""
        self.after_evaluated(batch_idx, len(runner.test_loop.dataloader))

    def after_test_epoch(self, runner: Runner, metrics: Any = None) -> None:
        """Results are computed."""
        self.begin()

    def after_evaluated(self, batch_idx: int, number: int) -> None:
        """A batch was evaluated; after the last, results of all processes are gathered."""
        self.after_iteration(batch_idx + 2)
        if not self.is_first and batch_idx + 1 == number:
            self.progress.enter(GATHERS)
