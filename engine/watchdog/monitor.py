"""Monitor of processes that crash or hang: the whole job ends, and the log says why.

Processes report to each other in torch's store. The first process reads the reports of all and
decides; the others end the job if the first one stops reporting.
"""
from __future__ import annotations

import faulthandler
import json
import logging
import multiprocessing
import os
import re
import secrets
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, get_world_size
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch.distributed import PrefixStore, Store, TCPStore

from colonnade.common.distributed import ProcessError
from colonnade.common.errors import UserCodeError, UserError

from ..runner.signal_handling import Interrupted
from .hang_detection import LEFT, Phases, Report, find_silent, find_slow_data, find_stuck

REMINDER = 60.  # seconds between two warnings about slow data
BEAT = 1.  # seconds between two reports
MAX_DELAY = 5.  # seconds without a turn of the thread, after which this process was suspended
GRACE = 6.  # seconds that the main thread has to exit by itself
MAX_TRACEBACK = 10_000  # characters
ENDED = 'ended'  # key of the reason why the job ends
#: what torch's backends say if the other end of a connection is gone
LOST = re.compile(r'gloo|nccl|c10d|connection (closed|reset)|broken pipe', re.IGNORECASE)


class ProcessLost(ConnectionError, UserError):
    """An error that follows from the crash or hang of another process."""


class Watch:
    """Threads that report the state of this process, and end it when another failed or hangs.

    No disk can block these threads: others write for them.
    """

    def __init__(self, store: Store, limit: float, log_file: Path, stacks: Path) -> None:
        self.store, self.limit, self.log_file, self.stacks = store, limit, log_file, stacks
        self.own = Report(get_rank(), socket.gethostname(), os.getpid(), since=time.monotonic())
        ranks = range(1, get_world_size()) if self.own.rank == 0 else [0]
        self.others = {rank: Report(rank, '?', 0) for rank in ranks}
        self.last_beats = dict.fromkeys(ranks, time.monotonic())
        self.last_reminder = -REMINDER
        self.reason, self.details = '', ''  # why the job ends
        self.known, self.closed = Event(), Event()
        self.threads = [Thread(target=work, name=f'colonnade-{work.__name__}', daemon=True)
                        for work in (self.exchange, self.watch)]  # yapf: disable

    def start(self) -> None:
        """Start the threads."""
        self.send_report()
        self.read_reports()
        for thread in self.threads:
            thread.start()

    def exchange(self) -> None:
        """Exchange reports each second, until the process that hosts the store is gone."""
        try:
            while not self.closed.wait(BEAT):
                self.send_report()
                self.read_reports()
        except RuntimeError:
            if self.own.rank and self.others[0].phase != LEFT and not self.closed.wait(GRACE):
                self.reason = self.reason or _describe_crash(self.others[0])

    def read_reports(self) -> None:
        """Read the reports of other processes, and why the job ends if one knows."""
        ended, *texts = self.store.multi_get([ENDED, *map(str, self.others)])
        for rank, text in zip(self.others, texts, strict=True):
            report = Report(**json.loads(text))
            if report.beat != self.others[rank].beat:
                self.others[rank], self.last_beats[rank] = report, time.monotonic()
        if ended and not self.reason:
            self.reason, self.details = json.loads(ended)

    def send_report(self) -> None:
        """Send the state of this process."""
        self.own.beat += 1
        self.store.set(str(self.own.rank), json.dumps(asdict(self._update_own())))

    def _update_own(self) -> Report:
        return replace(self.own, seconds=time.monotonic() - self.own.since)

    def _update_others(self, now: float) -> list[Report]:
        return [replace(report, silence=now - self.last_beats[rank])
                for rank, report in self.others.items()]  # yapf: disable

    def watch(self) -> None:
        """Check the reports each second, and end this process when the job ends."""
        last = time.monotonic()
        while not self.closed.wait(BEAT):
            now = time.monotonic()
            if now - last > MAX_DELAY:  # perhaps the whole job was suspended: restart all timers
                self.own.since, self.last_beats = now, dict.fromkeys(self.last_beats, now)
            elif reason := self.reason or self.find_hang(now):
                self.end(reason)
                return
            last = now

    def find_hang(self, now: float) -> str:
        """Return why the job is stuck; empty if it is not, or another process finds out."""
        others = self._update_others(now)
        reports = [self._update_own(), *others]
        if self.own.rank == 0 and now - self.last_reminder >= REMINDER and \
                (slow := find_slow_data(reports, REMINDER)):
            self.last_reminder = now
            Thread(target=_log, args=(slow, logging.WARNING), daemon=True).start()
        if not self.limit:
            return ''
        reason = find_silent(others, self.limit)
        if not reason and self.own.rank == 0:
            reason = find_stuck(reports, self.limit)
        return reason and (f'the run hangs: {reason}. {self.stacks.parent} has the stacks of the '
                           f'processes; --hang-timeout is {self.limit:g} s')

    def end(self, reason: str) -> None:
        """End this process unless it exits soon, and send the reason to the others."""
        self.reason = reason
        self.known.set()
        writers = [Thread(target=work, daemon=True) for work in (self.send_reason, self.record)]
        for thread in writers:
            thread.start()
        if not self.closed.wait(GRACE):
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(1)
        for thread in writers:
            thread.join(1)

    def record(self) -> None:
        """Log why the job ends, and keep the stacks of this process unless it exits soon."""
        with suppress(OSError), self.stacks.open('w', encoding='utf-8') as stacks:
            faulthandler.dump_traceback(file=stacks)
        if self.own.rank == 0:
            _log(self.reason + self.details, logging.ERROR)
        elif f'{self.others[0]} was' in self.reason or f'{self.others[0]} has not' in self.reason:
            with suppress(OSError):  # the log of the first process, which cannot write it any more
                log = self.log_file.read_text(encoding='utf-8', errors='replace')
                if self.reason not in log[-10_000:]:
                    with self.log_file.open('a', encoding='utf-8') as file:
                        file.write(f'{time.strftime("%Y/%m/%d %H:%M:%S")} - colonnade - ERROR - '
                                   f'{self.reason}\n')
        if self.closed.wait(GRACE - 1):
            self.stacks.unlink(missing_ok=True)

    def send_reason(self) -> None:
        """Send why the job ends to all processes, unless one did before."""
        with suppress(RuntimeError):  # the process that hosts the store is gone
            self.store.compare_set(ENDED, '', json.dumps([self.reason, self.details]))

    def leave(self, error: BaseException | None) -> None:
        """Stop watching."""
        has_failed = (isinstance(error, Exception) and not isinstance(error, Interrupted)) or \
            (isinstance(error, SystemExit) and isinstance(error.code, str))
        follows = isinstance(error, ProcessError) or \
            (isinstance(error, RuntimeError) and bool(LOST.search(str(error))))
        if follows:
            self._wait_for_cause()
        is_lost = follows and self.known.is_set()
        if has_failed and not self.known.is_set():
            text = ' '.join(str(error).split())[:500]
            text = text if isinstance(error, SystemExit) else f'{type(error).__name__}: {text}'
            self.details, self.reason = format_details(error), f'{self.own} ended: {text}'
            self.known.wait(GRACE)
        if self.reason and self.own.rank == 0:
            time.sleep(2 * BEAT)  # the store ends with this process: the others read it first
        self.own.phase = LEFT
        self.closed.set()
        with suppress(RuntimeError):  # the process that hosts the store is gone
            self.send_report()
        for thread in self.threads:
            thread.join(GRACE)
        if is_lost:
            raise ProcessLost(self.reason) from None

    def _wait_for_cause(self) -> None:
        """Wait until it is known which process failed."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not self.known.wait(BEAT):
            silent = [report for report in self._update_others(time.monotonic())
                      if report.phase != LEFT and report.silence > 3 * BEAT]  # yapf: disable
            if silent and not self.reason:
                self.reason = _describe_crash(silent[0])


def _describe_crash(report: Report) -> str:
    return f'{report} was killed or crashed without an error message, perhaps for lack of memory'


def _log(text: str, level: int) -> None:
    print_log(text, logger='current', level=level)


def format_details(error: BaseException | None) -> str:
    """Return the lines of a traceback, or an empty string if the message of the error is enough."""
    if isinstance(error, UserCodeError):
        text = error.format_traceback()
    elif error is None or isinstance(error, (UserError, SystemExit)):
        text = ''
    else:
        text = ''.join(traceback.format_exception(error))
    return ('\n' + text.rstrip()[-MAX_TRACEBACK:]).rstrip()


def _connect() -> Store | None:
    """Return torch's store on a connection of its own, or None if some process gets none."""
    name = [secrets.token_hex(4)]
    broadcast_object_list(name)
    own = Report(get_rank(), socket.gethostname(), os.getpid(), beat=1)
    store: Store | None = None
    try:
        address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
        store = PrefixStore(f'colonnade/watch_{name[0]}', TCPStore(
            *address, is_master=False, timeout=timedelta(seconds=30)))  # yapf: disable
        if get_rank() == 0:
            store.set(ENDED, '')
        store.set(str(get_rank()), json.dumps(asdict(own)))
    except (KeyError, RuntimeError):
        store = None
    return store if all(all_gather_object(store is not None)) else None


@contextmanager
def watch_processes(runner: Runner, limit: float) -> Iterator[None]:
    """Context manager that ends all processes, with the reason in the log, if one fails or hangs.

    Args:
        runner: Runner of this process.
        limit: Seconds that an iteration, or the silence of a process, may take. 0 means no limit.
    """
    if not limit >= 0:
        raise UserError(f'--hang-timeout must be 0 or more, got {limit:g}')
    store = _connect() if get_world_size() > 1 else None
    if store is None:
        if get_world_size() > 1:
            _log("hangs cannot be detected: torch's store is not at MASTER_ADDR and MASTER_PORT",
                 logging.WARNING)  # yapf: disable
        yield
        return
    folder = Path(runner.log_dir)
    watch = Watch(store, limit, folder / f'{runner.timestamp}.log',
                  folder / f'stacks_of_process_{get_rank()}.txt')
    for is_first in (True, False):
        runner.register_hook(Phases(watch.own, is_first=is_first))
    watch.start()
    try:
        yield
    except BaseException as error:
        watch.leave(error)
        raise
    watch.leave(None)
