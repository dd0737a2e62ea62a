"""Heartbeats of the processes of a job: if one fails or is lost, all end, and the log says why.

A process that waits for a lost one in a collective operation gets an error only from some of
torch's backends, and after torch's time limit. Here, each process sends a heartbeat to torch's
store, and reads why the job ends if another one has found out.
"""
from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import re
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Event, Thread

from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch.distributed import PrefixStore, Store
from torch.distributed.distributed_c10d import _get_default_store  # 2.12 has no public name

from colonnade.common.distributed import ProcessError
from colonnade.common.errors import UserCodeError, UserError

from .runner.signal_handling import Interrupted

BEAT = 1.  # seconds between two heartbeats
MISSED = 4.  # seconds without a heartbeat, after which a process whose connection broke is lost
MAX_DELAY = 5.  # seconds without a turn of the thread, after which this process was suspended
GRACE = 6.  # seconds that the main thread has to exit by itself
MAX_TRACEBACK = 10_000  # characters
ENDED = 'ended'  # key of the reason why the job ends
LEFT = b'left'  # last heartbeat of a process
#: what torch's backends say if the other end of a connection is gone or does not respond
LOST = re.compile(r'gloo|nccl|c10d|connection (closed|reset)|broken pipe', re.IGNORECASE)
_watches = count()  # equal in all processes, because they start watches in the same order


class ProcessLost(ConnectionError, UserError):
    """An error that follows from the failure of another process."""


class Heartbeat:
    """A thread that sends heartbeats, and ends this process when the job ends.

    The first process watches all others, which watch the first one.

    Args:
        store: Store of this job, on a connection that nothing else uses.
        names: Descriptions of all processes, in order of rank.
        limit: Seconds without a heartbeat after which a process is lost. 0 means no limit.
        log_file: Log of the first process.
    """

    def __init__(self, store: Store, names: list[str], limit: float, log_file: Path) -> None:
        self.store, self.names, self.limit, self.log_file = store, names, limit, log_file
        self.rank = get_rank()
        self.stacks = log_file.with_name(f'stacks_of_process_{self.rank}.txt')
        self.watched = list(range(1, len(names))) if self.rank == 0 else [0]
        self.beats = dict.fromkeys(self.watched, b'')  # the latest ones
        self.received = dict.fromkeys(self.watched, time.monotonic())
        self.reason = ''  # why the job ends, once known
        self.closed = Event()
        self.thread = Thread(target=self.run, name='colonnade-heartbeat', daemon=True)

    def run(self) -> None:
        """Exchange heartbeats each second until the job ends."""
        number, last = 0, time.monotonic()
        while not self.reason and not self.closed.wait(BEAT):
            now = time.monotonic()
            if now - last > MAX_DELAY:  # perhaps the whole job was suspended: restart the timers
                self.received = dict.fromkeys(self.watched, now)
            last, number = now, number + 1
            try:
                self.store.set(str(self.rank), str(number))
                self.read_beats(now)
            except RuntimeError:  # the process that hosts the store is gone
                if self.rank and self.beats[0] != LEFT and not self.closed.wait(GRACE):
                    self.end_job(self.describe_lost(0))
            if self.limit and (lost := self.find_lost(self.limit)) is not None:
                self.end_job(self.describe_lost(lost))
        if self.reason:
            self.end_process()

    def read_beats(self, now: float) -> None:
        """Read the heartbeats of the watched processes, and why the job ends if one knows."""
        ended, *beats = self.store.multi_get([ENDED, *map(str, self.watched)])
        for rank, beat in zip(self.watched, beats, strict=True):
            if beat != self.beats[rank]:
                self.beats[rank], self.received[rank] = beat, now
        self.reason = self.reason or ended.decode()

    def find_lost(self, limit: float) -> int | None:
        """Return the rank of a process without a heartbeat for ``limit`` seconds, or None."""
        oldest = time.monotonic() - limit
        return next(
            (rank
             for rank in self.watched if self.beats[rank] != LEFT and self.received[rank] < oldest),
            None)

    def describe_lost(self, rank: int) -> str:
        """Return that a process is lost."""
        silence = time.monotonic() - self.received[rank]
        return (f'{self.names[rank]} has not responded for {silence:.0f} s: it was killed, stopped '
                'or disconnected, perhaps for lack of memory')

    def end_job(self, reason: str, details: str = '') -> None:
        """Send the reason to all processes and log it, unless another process was first."""
        first = reason
        with suppress(RuntimeError):  # the process that hosts the store is gone
            first = self.store.compare_set(ENDED, '', reason).decode()
        self.reason = first
        if first != reason:
            return
        if self.rank == 0:
            print_log(reason + details, logger='current', level=logging.ERROR)
            return
        with suppress(OSError), self.log_file.open('a', encoding='utf-8') as log:
            log.write(f'{time.strftime("%Y/%m/%d %H:%M:%S")} - colonnade - ERROR - '
                      f'{reason}{details}\n')

    def end_process(self) -> None:
        """Write the stacks of all threads and end this process, unless it exits soon."""
        if self.closed.wait(GRACE):
            return
        # A disk that does not respond must not block this thread.
        writer = Thread(target=self.write_stacks, daemon=True)
        writer.start()
        writer.join(1)
        for child in multiprocessing.active_children():
            child.kill()
        os.write(2, f'\n{self.reason}\n'.encode(errors='backslashreplace'))
        os._exit(1)

    def write_stacks(self) -> None:
        """Write the stacks of all threads to a file."""
        with suppress(OSError), self.stacks.open('w', encoding='utf-8') as stacks:
            faulthandler.dump_traceback(file=stacks)

    def leave(self, error: BaseException | None) -> None:
        """Stop the thread, and end the job if this process failed.

        Raises:
            ProcessLost: If the error only follows from the failure of another process.
        """
        is_failure = isinstance(error, Exception) and not isinstance(error, Interrupted) or \
            isinstance(error, SystemExit) and isinstance(error.code, str)
        text = ' '.join(str(error).split())[:500]
        follows = isinstance(error, ProcessError) or \
            isinstance(error, RuntimeError) and bool(LOST.search(text))
        if follows:
            self.wait_for_cause()
        is_lost = follows and bool(self.reason)
        if is_failure and not self.reason:
            name = self.names[self.rank]
            if follows and 'timed out' in text.lower():
                reason = (f'the run hangs: {name} has waited for another process for '
                          f'{self.limit:g} s, the --hang-timeout. {self.stacks.parent} has the '
                          'stacks of the others')
            else:
                prefix = '' if isinstance(error, SystemExit) else f'{type(error).__name__}: '
                reason = f'{name} failed: {prefix}{text}'
            self.end_job(reason, format_traceback(error))
        if self.reason and self.rank == 0:
            time.sleep(2 * BEAT)  # the store may end with this process: the others read it first
        self.closed.set()
        self.thread.join(GRACE)
        with suppress(RuntimeError):  # the process that hosts the store is gone
            self.store.set(str(self.rank), LEFT)
        if is_lost:
            raise ProcessLost(self.reason) from None

    def wait_for_cause(self) -> None:
        """Wait until it is known which process failed, for a limited time."""
        end = time.monotonic() + GRACE
        while not self.reason and time.monotonic() < end:
            time.sleep(BEAT / 4)
            if (lost := self.find_lost(MISSED)) is not None:
                self.end_job(self.describe_lost(lost))


def format_traceback(error: BaseException | None) -> str:
    """Return the traceback of an error, or an empty string if its message is enough."""
    if isinstance(error, UserCodeError):
        text = error.format_traceback()
    elif error is None or isinstance(error, (UserError, SystemExit)):
        text = ''
    else:
        text = ''.join(traceback.format_exception(error))
    return ('\n' + text.rstrip()[-MAX_TRACEBACK:]).rstrip()


@contextmanager
def watch_processes(runner: Runner, limit: float) -> Iterator[None]:
    """Context manager that ends all processes, with the reason in the log, if one fails.

    Args:
        runner: Runner of this process.
        limit: Seconds without a heartbeat after which a process is lost. 0 means no limit.
    """
    if get_world_size() == 1:
        yield
        return
    names = all_gather_object(f'process {get_rank()} (pid {os.getpid()} on {socket.gethostname()})')
    # The connection of the default store is blocked while it waits for a key.
    store = PrefixStore(f'colonnade/watch_{next(_watches)}', _get_default_store().clone())
    store.set_timeout(timedelta(seconds=30))
    store.set(str(get_rank()), '0')
    if get_rank() == 0:
        store.set(ENDED, '')
    heartbeat = Heartbeat(store, names, limit, Path(runner.log_dir, f'{runner.timestamp}.log'))
    heartbeat.thread.start()
    try:
        yield
    except BaseException as error:
        heartbeat.leave(error)
        raise
    heartbeat.leave(None)
