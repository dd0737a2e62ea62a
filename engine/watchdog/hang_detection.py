"""Which process holds up the others, judged by what each reports of itself."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DATA = 'data'  # waits for the images of an iteration
STEP = 'step'  # is in an iteration
BUSY = 'busy'  # at work that the others wait for: starts, saves, computes metrics
GATHERS = 'gathers'  # waits for what the others evaluated
LEFT = 'left'  # has ended without an error


@dataclass
class Report:
    """What a process reports of itself.

    Attributes:
        rank: Its rank.
        host: Its machine.
        pid: Its process ID on that machine.
        phase: One of the above.
        iteration: The one that it does, or waits for.
        seconds: Time in this phase.
        silence: Seconds since its last report.
    """
    rank: int
    host: str
    pid: int
    phase: str = BUSY
    iteration: int = 0
    seconds: float = 0.
    silence: float = 0.

    def __str__(self) -> str:
        return f'process {self.rank} (pid {self.pid} on {self.host})'


def find_silent(reports: Sequence[Report], limit: float) -> str:
    """Return which process is silent, or an empty string if none is.

    Args:
        reports: Those of other processes.
        limit: Seconds that may pass without a report.
    """
    for report in reports:
        if report.phase != LEFT and report.silence > limit:
            return (f'{report} was not heard of for {report.silence:.0f} s, after it was in '
                    f'iteration {report.iteration}: it is stopped, or its machine is')
    return ''


def find_stuck(reports: Sequence[Report], limit: float) -> str:
    """Return why the job is stuck, or an empty string if it may still make progress.

    Args:
        reports: Those of all processes.
        limit: Seconds that an iteration may take, once its data are loaded.
    """
    steps = [report for report in reports if report.phase == STEP]
    # Processes in a step wait for those that load data or are busy. Whoever has just begun the
    # step that the others wait in has the whole limit for it.
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
    """Return which process has waited for data the longest, or an empty string if none has long.

    Args:
        reports: Those of all processes.
        limit: Seconds that a process may wait without being named.
    """
    waiting = [report for report in reports if report.phase == DATA and report.seconds > limit]
    if not waiting:
        return ''
    slowest = max(waiting, key=lambda report: report.seconds)
    return (f'{slowest} has been waiting for the data of iteration {slowest.iteration} for '
            f'{slowest.seconds:.0f} s, and {len(waiting)} of {len(reports)} processes wait for '
            'data: the storage or a transform is slow')
