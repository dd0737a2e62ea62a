"""Phases of the processes of a job, and which of them block the others."""
from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

DATA = 'data'  # waits for the images of an iteration
STEP = 'step'  # is in an iteration
BUSY = 'busy'  # does work that the others wait for: starts, saves, computes metrics
GATHERS = 'gathers'  # waits for the results of the others
LEFT = 'left'  # has ended without an error


@dataclass
class Report:
    """State of a process."""
    rank: int
    host: str
    pid: int  # process ID on the host
    phase: str = BUSY  # one of the phases above
    iteration: int = 0  # iteration that it runs or waits for
    since: float = 0.  # start of the phase, by the monotonic clock of the process
    seconds: float = 0.  # time in the phase when the report was made
    beat: int = 0  # number of reports so far
    silence: float = 0.  # seconds since the last report, by the clock of the reader

    def __str__(self) -> str:
        return f'process {self.rank} (pid {self.pid} on {self.host})'


class Phases(Hook):
    """A hook that records the phase of this process, as the first and as the last of all hooks.

    What other hooks do between two iterations, such as saving, may take any time.
    """

    def __init__(self, report: Report, *, is_first: bool) -> None:
        self.report, self.is_first = report, is_first
        self.priority = 'HIGHEST' if is_first else 'LOWEST'

    def enter(self, phase: str, iteration: int | None = None) -> None:
        """Start a phase."""
        self.report.phase, self.report.since = phase, time.monotonic()
        if iteration is not None:
            self.report.iteration = iteration

    def _before_epoch(self, runner: Runner, mode: str = 'train') -> None:
        if not self.is_first:
            self.enter(DATA, runner.iter + 1 if mode == 'train' else 1)

    def _before_iter(self, runner: Runner, batch_idx: int, *_: Any, mode: str = 'train',
                     **__: Any) -> None:  # yapf: disable
        if self.is_first:
            self.enter(STEP, (runner.iter if mode == 'train' else batch_idx) + 1)

    def _after_iter(self, runner: Runner, batch_idx: int, *_: Any, mode: str = 'train',
                    **__: Any) -> None:  # yapf: disable
        if mode != 'train':
            loop = runner.val_loop if mode == 'val' else runner.test_loop
            if batch_idx + 1 == len(loop.dataloader):
                self.enter(GATHERS)  # also for hooks that wait for all, such as StopOnSignal
                return
        if self.is_first:
            self.enter(BUSY)
        else:
            self.enter(DATA, (runner.iter if mode == 'train' else batch_idx) + 2)

    def _after_epoch(self, runner: Runner, mode: str = 'train') -> None:
        if self.is_first:
            self.enter(BUSY)

    def after_val(self, runner: Runner) -> None:
        if not self.is_first:
            self.enter(DATA, runner.iter + 1)

    def after_train(self, runner: Runner) -> None:
        if self.is_first:
            self.enter(BUSY)


def find_silent(reports: Sequence[Report], limit: float) -> str:
    """Return which process has not reported for ``limit`` seconds, or an empty string."""
    for report in reports:
        if report.phase != LEFT and report.silence > limit:
            return (f'{report} has not reported for {report.silence:.0f} s, since iteration '
                    f'{report.iteration}: the process or its host was stopped or killed')
    return ''


def find_stuck(reports: Sequence[Report], limit: float) -> str:
    """Return why the job is stuck, or an empty string if it may still make progress."""
    steps = [report for report in reports if report.phase == STEP]
    # Processes in a step wait for those that load data or are busy. A process that has just started
    # the step that the others wait in has the whole limit for it.
    if any(report.phase in (DATA, BUSY) for report in reports) or \
            not steps or min(report.seconds for report in steps) <= limit:
        return ''
    last = min(steps, key=lambda report: report.iteration)
    for report in reports:
        if report.phase == LEFT:
            return (f'{report} has ended at iteration {report.iteration}, and {last} waits for it '
                    f'in iteration {last.iteration}')
    return (f'{last} has been in iteration {last.iteration} for {last.seconds:.0f} s, and '
            f'{len(steps)} of {len(reports)} processes are in an iteration')


def find_slow_data(reports: Sequence[Report], limit: float) -> str:
    """Return which process has waited longest for data, or an empty string if none for ``limit``.
    """
    waiting = [report for report in reports if report.phase == DATA and report.seconds > limit]
    if not waiting:
        return ''
    slowest = max(waiting, key=lambda report: report.seconds)
    return (f'{slowest} has been waiting for the data of iteration {slowest.iteration} for '
            f'{slowest.seconds:.0f} s, and {len(waiting)} of {len(reports)} processes wait for '
            'data: the storage or a transform is slow')
