"""A thread of each process, which ends the process with a reason if another one died or hangs."""
from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import re
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner

from colonnade.common.distributed import ProcessError, on_several_machines
from colonnade.common.errors import UserCodeError, UserError

from ..runner.signal_handling import Interrupted
from .connections import close, connect, receive, send
from .hang_detection import LEFT, Report, find_silent, find_slow_data, find_stuck
from .phase_hooks import Phases, Progress

REMINDER = 60.  # seconds between two warnings of slow data
LONGEST = 10_000  # characters of a traceback
BEAT = 1.  # seconds between two reports
LATE = 5.  # seconds without a report, after which this process was suspended itself
GRACE = 6.  # seconds that the main thread has to end by itself
#: what torch's backends say if the other end of a connection has gone
LOST = re.compile(r'gloo|nccl|c10d|connection (closed|reset)|broken pipe', re.IGNORECASE)


class ProcessLost(ConnectionError, UserError):
    """Another process of the job died or hangs."""


class Watch(Thread):
    """Reports where this process stands, and hears where the others do.

    The first process is connected with all, and judges. The others end if it falls silent. No disk
    can hold up this thread: others write for it.

    Args:
        links: See :func:`~.connections.connect`.
        limit: Seconds that an iteration, or the silence of a process, may take; 0 for any number.
        log_file: Log of the first process.
        stacks: File to which this process writes what its threads were doing.
    """

    def __init__(self, links: dict[int, Connection], limit: float, log_file: Path,
                 stacks: Path) -> None:
        super().__init__(name='colonnade-watch', daemon=True)
        self.links, self.limit, self.log_file, self.stacks = links, limit, log_file, stacks
        self.own = Report(get_rank(), socket.gethostname(), os.getpid())
        self.others = {rank: Report(rank, '?', 0) for rank in links}
        self.heard = dict.fromkeys(links, time.monotonic())
        self.progress = Progress()
        self.warned = -REMINDER  # when slow data was last named
        self.reason, self.details = '', ''  # why the job ends
        self.is_told = False  # whether the first process said so
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
        """Start to measure again: this process was suspended, perhaps with the whole job."""
        self.progress.since = time.monotonic()
        self.heard = dict.fromkeys(self.heard, self.progress.since)

    def tell(self) -> None:
        """Report where this process stands."""
        progress = self.progress
        self.own = replace(self.own, phase=progress.phase, iteration=progress.iteration,
                           seconds=time.monotonic() - progress.since)  # yapf: disable
        self.send(report=asdict(self.own))

    def send(self, **message: Any) -> None:
        """Send a message to all that this process is connected with."""
        with self.sending:
            for link in self.links.values():
                send(link, message)

    def hear(self, rank: int) -> str:
        """Receive a message of another process; returns why the job ends, if it does."""
        try:
            message = receive(self.links[rank])
        except EOFError:
            other = self.others[rank]
            return (f'{other} was killed or crashed, without a word: perhaps for lack of memory'
                    if other.phase != LEFT else '')
        self.heard[rank] = time.monotonic()
        if 'report' in message:
            self.others[rank] = Report(**message['report'])
        if 'left' in message:
            self.others[rank].phase = LEFT
        if 'ended' in message and not self.is_told:  # the first one is why the others end
            self.is_told, self.details = True, message.get('details', '')
        return message.get('ended', '')

    def judge(self) -> str:
        """Return why the job does not go on; empty if it does, or if another process finds out."""
        moment = time.monotonic()
        for rank, heard in self.heard.items():
            self.others[rank].silence = moment - heard
        others = list(self.others.values())
        if self.own.rank == 0 and moment - self.warned >= REMINDER and \
                (slow := find_slow_data([self.own, *others], REMINDER)):
            self.warned = moment
            write_aside(print_log, slow, logger='current', level=logging.WARNING)
        if not self.limit:
            return ''
        reason = find_silent(others, self.limit)
        if not reason and self.own.rank == 0:
            reason = find_stuck([self.own, *others], self.limit)
        return reason and (f'the run hangs: {reason}. {self.stacks.parent} has the stacks of the '
                           f'processes; --hang-limit is {self.limit:g} s')

    def end(self, reason: str) -> None:
        """End this process, and with the first one all others, unless it ends by itself soon."""
        self.reason = reason
        self.known.set()
        with open(os.devnull, 'w', encoding='utf-8') as nowhere:
            # This thread of faulthandler needs neither Python's lock nor a disk.
            faulthandler.dump_traceback_later(GRACE, exit=True, file=nowhere)
            if self.own.rank == 0:
                self.send(ended=reason)
            writing = write_aside(self.write_down)
            self.closed.wait(GRACE - 1)
            while not self.closed.wait(0.1):  # which this process may not live to see
                for child in multiprocessing.active_children():  # loaders may start others
                    child.kill()
            faulthandler.cancel_dump_traceback_later()
        writing.join(1)

    def write_down(self) -> None:
        """Log why the job ends, and keep what this process was doing unless it ends by itself."""
        try:
            with self.stacks.open('w', encoding='utf-8') as stacks:
                faulthandler.dump_traceback(file=stacks)
        except OSError:  # the folder of another machine, or a disk that fails
            pass
        if self.own.rank == 0:
            print_log(self.reason + self.details, logger='current', level=logging.ERROR)
        elif not self.is_told:
            append_once(self.log_file, self.reason)
        if self.closed.wait(GRACE - 1):
            self.stacks.unlink(missing_ok=True)

    def leave(self, error: BaseException | None) -> None:
        """End watching.

        Args:
            error: The one that ends this process.

        Raises:
            ProcessLost: If the error follows from the end of another process.
        """
        failed = (isinstance(error, Exception) and not isinstance(error, Interrupted)) or \
            (isinstance(error, SystemExit) and isinstance(error.code, str))
        follows = isinstance(error, ProcessError) or \
            (isinstance(error, RuntimeError) and bool(LOST.search(str(error))))
        if follows:
            self.known.wait(GRACE / 2)
        if failed and not self.known.is_set():
            reason, details = f'{self.own} ended: {named(error)}', traceback_of(error)
            self.send(ended=reason, details=details)
            if self.own.rank == 0:
                write_aside(print_log, reason + details, logger='current',
                            level=logging.ERROR).join(GRACE)  # yapf: disable
        else:
            self.send(left=True)
        self.closed.set()
        self.button.send_bytes(b'')
        self.join(GRACE)
        close(self.links.values())
        if follows and self.known.is_set():
            raise ProcessLost(self.reason) from None


def write_aside(write: Callable[..., None], *args: Any, **kwargs: Any) -> Thread:
    """Write to a disk, which may be what hangs, in a thread of its own, and return that."""
    thread = Thread(target=write, args=args, kwargs=kwargs, daemon=True)
    thread.start()
    return thread


def traceback_of(error: BaseException | None) -> str:
    """Return the lines of a traceback; empty for errors whose message is all that a user needs."""
    if isinstance(error, UserCodeError):
        return ('\n' + error.format_traceback().rstrip()[-LONGEST:]).rstrip()
    if error is None or isinstance(error, (UserError, SystemExit)):
        return ''
    return '\n' + ''.join(traceback.format_exception(error)).rstrip()[-LONGEST:]


def named(error: BaseException | None) -> str:
    """An error in one line."""
    text = ' '.join(str(error).split())[:500]
    return text if isinstance(error, SystemExit) else f'{type(error).__name__}: {text}'


def append_once(path: Path, line: str) -> None:
    """Add a line to the log of a process that cannot do so any more, unless another one did."""
    try:
        if line not in path.read_text(encoding='utf-8', errors='replace')[-10_000:]:
            with path.open('a', encoding='utf-8') as file:
                file.write(f'{time.strftime("%Y/%m/%d %H:%M:%S")} - colonnade - ERROR - {line}\n')
    except OSError:  # of another machine
        pass


@contextmanager
def watched(runner: Runner, limit: float) -> Iterator[None]:
    """While open, a process of several that dies or hangs ends all, with its reason in the log.

    Args:
        runner: Of this process.
        limit: Seconds that an iteration, or the silence of a process, may take; 0 for any number.

    Raises:
        ProcessLost: If another process did, and this one fails for want of it.
        ValueError: If the limit is no number from 0 on.
    """
    if not limit >= 0:
        raise UserError(f'--hang-limit must be 0 or more, got {limit:g}')
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
