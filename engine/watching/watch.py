"""A thread of each process, which ends the process with a reason if another one died or hangs."""
from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner

from ..interruption import Interrupted
from ..processes import on_several_machines
from .hooks import Phases, Progress
from .judging import BUSY, LEFT, SILENT, Report, hanging
from .links import close, connect, receive, send

HANG_LIMIT = 45.  # seconds
BEAT = 1.  # seconds between two reports
LATE = 5.  # seconds without a report, after which this process was suspended itself
GRACE = 6.  # seconds that the main thread has to end by itself
#: what torch's backends say if the other end of a connection has gone
LOST = re.compile(r'gloo|nccl|c10d|connection (closed|reset)|broken pipe', re.IGNORECASE)


class ProcessLost(ConnectionError):
    """Another process of the job died or hangs."""


class Watch(Thread):
    """Reports where this process stands, and hears where the others do.

    The first process is connected with all, and judges. The others judge it alone.

    Args:
        links: See :func:`~.links.connect`.
        limit: Seconds that a phase of an iteration may take; 0 for any number.
        log_file: Of the first process.
        stacks: Where this process writes what its threads were doing.
    """

    def __init__(self, links: dict[int, Connection], limit: float, log_file: Path,
                 stacks: Path) -> None:
        super().__init__(name='colonnade-watch', daemon=True)
        self.links, self.limit, self.log_file, self.stacks = links, limit, log_file, stacks
        self.own = Report(get_rank(), socket.gethostname(), os.getpid())
        self.others = {rank: Report(rank, '?', 0) for rank in links}
        self.heard = dict.fromkeys(links, time.monotonic())
        self.progress = Progress(self.tell)
        self.reason, self.is_told = '', False  # why the job ends; whether the first one said so
        self.bell, self.button = multiprocessing.Pipe(duplex=False)  # which wakes the thread
        self.known, self.closed, self.sending = Event(), Event(), Lock()

    def run(self) -> None:
        """Exchange reports until the run ends, or another process does."""
        self.tell()
        told = time.monotonic()
        while not self.closed.is_set():
            present = {link: rank for rank, link in self.links.items()
                       if self.others[rank].phase != LEFT}  # yapf: disable
            ready = wait([self.bell, *present], max(0., told + BEAT - time.monotonic()))
            heard = [self.hear(present[link]) for link in ready if link in present]
            reason = next(filter(None, heard), '')
            if (passed := time.monotonic() - told) >= BEAT:
                if passed > LATE:
                    self.forgive()
                self.tell()
                told = time.monotonic()
                reason = reason or (self.judge() if passed <= LATE else '')
            if reason and not self.closed.is_set():
                self.end(reason)
                return

    def forgive(self) -> None:
        """Start to measure anew: this process was suspended, perhaps with the whole job."""
        self.progress.since = time.monotonic()
        self.heard = dict.fromkeys(self.heard, self.progress.since)

    def tell(self) -> None:
        """Report where this process stands; the first one also tells each if others are busy."""
        progress = self.progress
        self.own = replace(self.own, phase=progress.phase, iteration=progress.iteration,
                           seconds=progress.seconds, longest=progress.longest)  # yapf: disable
        for rank, link in self.links.items():
            told = self.own
            if self.own.rank == 0 and any(other.is_excused
                                          for other in self.others.values() if other.rank != rank):
                told = replace(told, phase=BUSY)
            with self.sending:
                send(link, dict(report=asdict(told)))

    def send(self, **message: Any) -> None:
        """Send a message to all that this process is connected with."""
        with self.sending:
            for link in self.links.values():
                send(link, message)

    def hear(self, rank: int) -> str:
        """Take a message of another process; returns why the job ends, if it does."""
        try:
            message = receive(self.links[rank])
        except EOFError:
            other = self.others[rank]
            return (f'{other} was killed or crashed, without a word: perhaps for lack of memory'
                    if other.phase != LEFT else '')
        self.heard[rank] = time.monotonic()
        if 'report' in message:
            was_excused, self.others[rank] = self.others[rank].is_excused, Report(
                **message['report'])
            if self.own.rank == 0 and self.others[rank].is_excused != was_excused:
                self.tell()  # to those who judge if this process falls silent
        if 'left' in message:
            self.others[rank].phase = LEFT
        self.is_told = 'ended' in message
        return message.get('ended', '')

    def judge(self) -> str:
        """Why the job does not go on; empty if it does, or if another process will find out."""
        moment = time.monotonic()
        for rank, heard in self.heard.items():
            self.others[rank].silence = moment - heard if moment - heard > 2 * BEAT else 0.
        if not self.limit or (self.own.rank and self.others[0].silence < SILENT):
            return ''
        reason = hanging([self.own, *self.others.values()], self.limit)
        return reason and (f'the run hangs: {reason}. {self.stacks.parent} has the stacks of the '
                           f'processes; --hang-limit is {self.limit:g} s')

    def end(self, reason: str) -> None:
        """End this process, and with the first one all others, unless it ends by itself soon."""
        self.reason = reason
        self.known.set()
        with self.stacks.open('w') as stacks:
            faulthandler.dump_traceback(file=stacks)
            # a thread without need of Python's lock, which also sees to the end of this one
            faulthandler.dump_traceback_later(GRACE, exit=True, file=stacks)
            if self.own.rank == 0:
                self.send(ended=reason)
                print_log(reason, logger='current', level=logging.ERROR)
            elif not self.is_told:
                append_once(self.log_file, reason)
            self.closed.wait(GRACE - 1)
            while not self.closed.wait(0.1):  # which this process may not live to see
                for child in multiprocessing.active_children():  # loaders may start others
                    child.kill()
            faulthandler.cancel_dump_traceback_later()
        self.stacks.unlink()

    def leave(self, error: BaseException | None) -> None:
        """End watching.

        Args:
            error: That ends this process.

        Raises:
            ProcessLost: If the error follows from the end of another process.
        """
        failed = (isinstance(error, Exception) and not isinstance(error, Interrupted)) or \
            (isinstance(error, SystemExit) and isinstance(error.code, str))
        follows = isinstance(error, RuntimeError) and bool(LOST.search(str(error)))
        if follows:
            self.known.wait(GRACE / 2)
        if failed and not self.known.is_set():
            reason = f'{self.own} ended: {named(error)}'
            if self.own.rank == 0:
                print_log(reason, logger='current', level=logging.ERROR)
            self.send(ended=reason)
        else:
            self.send(left=True)
        self.closed.set()
        self.button.send_bytes(b'')
        self.join(GRACE)
        close(self.links.values())
        if follows and self.known.is_set():
            raise ProcessLost(self.reason) from None


def named(error: BaseException | None) -> str:
    """An error in one line."""
    text = ' '.join(str(error).split())[:500]
    return text if isinstance(error, SystemExit) else f'{type(error).__name__}: {text}'


def append_once(path: Path, line: str) -> None:
    """Add a line to the log of a process that cannot do so any more, unless another one did."""
    try:
        if line not in path.read_text(errors='replace')[-10_000:]:
            with path.open('a') as file:
                file.write(f'{time.strftime("%Y/%m/%d %H:%M:%S")} - colonnade - ERROR - {line}\n')
    except OSError:  # of another machine
        pass


@contextmanager
def watched(runner: Runner, limit: float) -> Iterator[None]:
    """While open, a process of several that dies or hangs ends all, with its reason in the log.

    Args:
        runner: Of this process.
        limit: Seconds that a phase of an iteration may take; 0 for any number.

    Raises:
        ProcessLost: If another process did, and this one fails for want of it.
        ValueError: If the limit is no number from 0 on.
    """
    if not limit >= 0:
        raise ValueError(f'--hang-limit must be 0 or more, got {limit:g}')
    if get_world_size() == 1:
        yield
        return
    links = connect(on_several_machines(runner.cfg.launcher))
    if links is None:
        print_log(
            'processes cannot connect to the first one, to see if one of them hangs: a firewall is '
            'between their machines',
            logger='current',
            level=logging.WARNING)
        yield
        return
    folder = Path(runner.log_dir)
    watch = Watch(links, limit, folder / f'{runner.timestamp}.log',
                  folder / f'stacks_of_process_{get_rank()}.txt')
    for is_first in (True, False):
        runner.register_hook(Phases(watch.progress, is_first=is_first))
    watch.start()
    try:
        yield
    except BaseException as error:
        watch.leave(error)
        raise
    watch.leave(None)
