"""Which process holds up the others, judged by what each says of itself."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DATA = 'data'  # waits for the images of an iteration
STEP = 'step'  # is in an iteration
HOOKS = 'hooks'  # between two iterations: what is done then may take long
BUSY = 'busy'  # at work that the others wait for: starts, saves, evaluates
GATHERS = 'gathers'  # waits for what the others evaluated
LEFT = 'left'  # has ended without an error

PATIENCE = 10  # times the longest iteration so far are no reason to worry
SILENT = 10.  # seconds
QUIET = 3.  # seconds without a word, of a process that is late


@dataclass
class Report:
    """What a process says of itself.

    Attributes:
        rank: Its number.
        host: Its machine.
        pid: Its number on that machine.
        phase: One of the above.
        iteration: The one that it does, or waits for.
        seconds: Since it is in this phase.
        longest: That a phase of an iteration took so far, in seconds.
        silence: Seconds since it was heard of.
    """
    rank: int
    host: str
    pid: int
    phase: str = BUSY
    iteration: int = 0
    seconds: float = 0.
    longest: float = 0.
    silence: float = 0.

    @property
    def duration(self) -> float:
        """Seconds in this phase, also those in which nothing was heard of it."""
        return self.seconds + self.silence

    @property
    def is_excused(self) -> bool:
        """Whether others may have to wait for it for a long time."""
        return self.phase == BUSY or (self.phase == HOOKS and self.silence < SILENT)

    def __str__(self) -> str:
        return f'process {self.rank} (pid {self.pid} on {self.host})'


def hanging(reports: Sequence[Report], limit: float) -> str:
    """Why a job does not go on; empty if it does, or may.

    Args:
        reports: Of all processes.
        limit: Seconds that a phase of an iteration may take; more where iterations are long.
    """
    allowed = max(limit, PATIENCE * max(report.longest for report in reports))
    if any(report.is_excused for report in reports):
        return ''
    waiting = [report for report in reports if report.phase in (DATA, STEP, HOOKS)]
    if not any(report.duration > allowed for report in waiting):
        return ''
    return complaint(reports, [report for report in waiting if report.duration > allowed / 2])


def complaint(reports: Sequence[Report], late: Sequence[Report]) -> str:
    """Who is to blame: who left, is silent, or waits for no other process, in this order."""
    for report in reports:
        if report.phase == LEFT:
            return f'{report} has ended at iteration {report.iteration}, and others wait for it'
    for report in late:
        if report.silence > QUIET:
            return (f'{report} was not heard of for {report.silence:.0f} s, after it was in '
                    f'iteration {report.iteration}: it is stopped, or its machine is')
    for report in late:
        if report.phase == DATA:
            return (f'{report} waits for the data of iteration {report.iteration} since '
                    f'{report.duration:.0f} s')
    last = min(late, key=lambda report: report.iteration)
    return (f'{last} is in iteration {last.iteration} since {last.duration:.0f} s, as are '
            f'{len(late)} of {len(reports)} processes')
