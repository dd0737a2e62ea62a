"""Heartbeats in torch's store, by which processes learn that another one failed or hangs."""
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
from contextlib import contextmanager
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
from .phases import LEFT, Phases, Report, find_silent, find_slow_data, find_stuck

REMINDER = 60.  # seconds between two warnings of slow data
LONGEST = 10_000  # characters of a traceback
BEAT = 1.  # seconds between two reports
LATE = 5.  # seconds without a turn of the thread, after which this process was suspended itself
GRACE = 6.  # seconds that the main thread has to end by itself
ENDED = 'ended'  # key of the reason why the job ends
#: what torch's backends say if the other end of a connection has gone
LOST = re.compile(r'gloo|nccl|c10d|connection (closed|reset)|broken pipe', re.IGNORECASE)


class ProcessLost(ConnectionError, UserError):
    """Another process of the job died or hangs."""


class Watch:
    """Reports where this process stands, and ends it when another one has failed or hangs.

    The first process reads the reports of all, and judges. The others end if it falls silent. No
    disk can hold up these threads: others write for them.

    Args:
        store: Of all processes, on a connection of its own.
        limit: Seconds that an iteration, or the silence of a process, may take; 0 for any number.
        log_file: Log of the first process.
        stacks: File to which this process writes what its threads were doing.
    """

    def __init__(self, store: Store, limit: float, log_file: Path, stacks: Path) -> None:
        self.store, self.limit, self.log_file, self.stacks = store, limit, log_file, stacks
        self.own = Report(get_rank(), socket.gethostname(), os.getpid(), since=time.monotonic())
        ranks = range(1, get_world_size()) if self.own.rank == 0 else [0]
        self.others = {rank: Report(rank, '?', 0) for rank in ranks}
        self.heard = dict.fromkeys(ranks, time.monotonic())
        self.warned = -REMINDER  # when slow data was last named
        self.reason, self.details = '', ''  # why the job ends
        self.known, self.closed = Event(), Event()
        self.threads = [Thread(target=work, name=f'colonnade-{work.__name__}', daemon=True)
                        for work in (self.exchange, self.watch)]  # yapf: disable

    def start(self) -> None:
        """Start to report and to judge."""
        self.send_report()
        self.read_reports()
        for thread in self.threads:
            thread.start()

    def exchange(self) -> None:
        """Exchange reports each second, until the store is gone with the process that has it."""
        try:
            while not self.closed.wait(BEAT):
                self.send_report()
                self.read_reports()
        except RuntimeError:
            if self.own.rank and self.others[0].phase != LEFT and not self.closed.wait(GRACE):
                self.reason = self.reason or describe_death(self.others[0])

    def read_reports(self) -> None:
        """Read the reports of other processes, and why the job ends if one says so."""
        ended, *texts = self.store.multi_get([ENDED, *map(str, self.others)])
        for rank, text in zip(self.others, texts, strict=True):
            report = Report(**json.loads(text))
            if report.beat != self.others[rank].beat:
                self.others[rank], self.heard[rank] = report, time.monotonic()
        if ended and not self.reason:
            self.reason, self.details = json.loads(ended)

    def send_report(self) -> None:
        """Report where this process stands."""
        self.own.beat += 1
        self.store.set(str(self.own.rank), json.dumps(asdict(self.measured())))

    def measured(self) -> Report:
        """Return the report of this process with the time that it has spent in its phase."""
        return replace(self.own, seconds=time.monotonic() - self.own.since)

    def watch(self) -> None:
        """Judge each second, and end this process when the job ends."""
        last = time.monotonic()
        while not self.closed.wait(BEAT):
            moment = time.monotonic()
            if moment - last > LATE:  # start to measure again, perhaps as the whole job does
                self.own.since, self.heard = moment, dict.fromkeys(self.heard, moment)
            elif reason := self.reason or self.judge(moment):
                self.end(reason)
                return
            last = moment

    def judge(self, moment: float) -> str:
        """Return why the job does not go on; empty if it does, or if another process finds out."""
        others = self.silences(moment)
        reports = [self.measured(), *others]
        if self.own.rank == 0 and moment - self.warned >= REMINDER and \
                (slow := find_slow_data(reports, REMINDER)):
            self.warned = moment
            Thread(target=log, args=(slow, logging.WARNING), daemon=True).start()
        if not self.limit:
            return ''
        reason = find_silent(others, self.limit)
        if not reason and self.own.rank == 0:
            reason = find_stuck(reports, self.limit)
        return reason and (f'the run hangs: {reason}. {self.stacks.parent} has the stacks of the '
                           f'processes; --hang-limit is {self.limit:g} s')

    def silences(self, moment: float) -> list[Report]:
        """Return the reports of other processes, with the time since they were made."""
        return [replace(report, silence=moment - self.heard[rank])
                for rank, report in self.others.items()]  # yapf: disable

    def end(self, reason: str) -> None:
        """End this process, unless it ends by itself soon, and let the others know."""
        self.reason = reason
        self.known.set()
        writing = [Thread(target=work, daemon=True) for work in (self.tell, self.write_down)]
        for thread in writing:
            thread.start()
        if not self.closed.wait(GRACE):
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(1)
        for thread in writing:
            thread.join(1)

    def write_down(self) -> None:
        """Log why the job ends, and keep what this process was doing unless it ends by itself."""
        try:
            with self.stacks.open('w', encoding='utf-8') as stacks:
                faulthandler.dump_traceback(file=stacks)
        except OSError:  # the folder of another machine, or a disk that fails
            pass
        if self.own.rank == 0:
            log(self.reason + self.details, logging.ERROR)
        elif self.blames_first():
            append_once(self.log_file, self.reason)
        if self.closed.wait(GRACE - 1):
            self.stacks.unlink(missing_ok=True)

    def blames_first(self) -> bool:
        """Return True if the first process cannot log why the job ends, because it is the cause."""
        return f'{self.others[0]} was' in self.reason

    def tell(self) -> None:
        """Let all processes know why the job ends, unless one did before."""
        try:
            self.store.compare_set(ENDED, '', json.dumps([self.reason, self.details]))
        except RuntimeError:  # the process that has the store is gone
            pass

    def find_cause(self) -> None:
        """Wait until it is known which process failed, if an error follows from that."""
        end = time.monotonic() + GRACE
        while time.monotonic() < end and not self.known.wait(BEAT):
            silent = [report for report in self.silences(time.monotonic())
                      if report.phase != LEFT and report.silence > 3 * BEAT]  # yapf: disable
            if silent and not self.reason:
                self.reason = describe_death(silent[0])

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
            self.find_cause()
        is_lost = follows and self.known.is_set()
        if failed and not self.known.is_set():
            self.details, self.reason = traceback_of(error), f'{self.own} ended: {named(error)}'
            self.known.wait(GRACE)
        if self.reason and self.own.rank == 0:
            time.sleep(2 * BEAT)  # the store may end with this process: let the others read
        self.own.phase = LEFT
        self.closed.set()
        try:
            self.send_report()
        except RuntimeError:  # the process that has the store is gone
            pass
        for thread in self.threads:
            thread.join(GRACE)
        if is_lost:
            raise ProcessLost(self.reason) from None


def describe_death(report: Report) -> str:
    """Return what is known of a process that does not report any more."""
    return f'{report} was killed or crashed, without a word: perhaps for lack of memory'


def log(text: str, level: int) -> None:
    """Write to the log, whose disk may be what hangs."""
    print_log(text, logger='current', level=level)


def traceback_of(error: BaseException | None) -> str:
    """Return the lines of a traceback; empty for errors whose message is all that a user needs."""
    if isinstance(error, UserCodeError):
        return ('\n' + error.format_traceback().rstrip()[-LONGEST:]).rstrip()
    if error is None or isinstance(error, (UserError, SystemExit)):
        return ''
    return '\n' + ''.join(traceback.format_exception(error)).rstrip()[-LONGEST:]


def named(error: BaseException | None) -> str:
    """Return an error in one line."""
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


def connect() -> Store | None:
    """Return torch's store on a connection of its own, or None if some process gets none.

    The store that torch uses waits for keys, and would hold up reports meanwhile.
    """
    name = [secrets.token_hex(4)]
    broadcast_object_list(name)
    own = Report(get_rank(), socket.gethostname(), os.getpid(), beat=1)
    store: Store | None = None
    try:
        place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
        store = PrefixStore(f'colonnade/watch_{name[0]}', TCPStore(
            *place, is_master=False, timeout=timedelta(seconds=30)))  # yapf: disable
        if get_rank() == 0:
            store.set(ENDED, '')
        store.set(str(get_rank()), json.dumps(asdict(own)))
    except (KeyError, RuntimeError):
        store = None
    return store if all(all_gather_object(store is not None)) else None


@contextmanager
def watched(runner: Runner, limit: float) -> Iterator[None]:
    """Context manager that ends all processes, with the reason in the log, if one dies or hangs.

    Args:
        runner: Of this process.
        limit: Seconds that an iteration, or the silence of a process, may take; 0 for any number.

    Raises:
        ProcessLost: If another process did, and this one fails for want of it.
        ValueError: If the limit is no number from 0 on.
    """
    if not limit >= 0:
        raise UserError(f'--hang-limit must be 0 or more, got {limit:g}')
    store = connect() if get_world_size() > 1 else None
    if store is None:
        if get_world_size() > 1:
            print_log(
                "processes cannot see if one of them hangs: torch's store is not at MASTER_ADDR "
                'and MASTER_PORT',
                logger='current',
                level=logging.WARNING)
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
