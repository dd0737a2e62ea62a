"""Workers of data loaders that are killed, and started again."""
from __future__ import annotations

import logging
import os
import re
import select
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch
from mmengine.logging import print_log
from torch.utils.data import DataLoader, IterableDataset

from colonnade.common.errors import UserError
from colonnade.settings.checks.class_checks import shortened

ATTEMPTS = 3  # without a batch in between
DIED = re.compile(r'DataLoader worker \(pid')  # what torch's errors of workers that died begin with
NOT_PINNED = 'Pin memory thread exited unexpectedly'  # torch's error, as after a lost connection


class WorkersDied(ChildProcessError, UserError):
    """Workers of a data loader died again and again at the same batch."""


class RestartingLoader(DataLoader):
    """torch's data loader, which starts its workers again if one of them was killed.

    Batches that are on their way are read again: none is lost, none comes twice, and their order is
    that of the sampler. A pass that begins in the middle of another one has workers of its own.

    Attributes:
        reading: The pass that the latest workers were started for.
        with_workers: torch's iterators that were started and are in use yet.
    """
    reading: Pass | None = None  # a default, as loaders become such in place
    with_workers: weakref.WeakSet[Any]

    def __iter__(self) -> Iterator[Any]:
        """The batches.

        Raises:
            WorkersDied: If workers die several times before the same batch.
        """
        own = Pass(super()._index_sampler)
        try:
            yield from self.read(own)
        finally:
            own.ended = True

    def read(self, own: Pass) -> Iterator[Any]:
        """The batches of a pass."""
        if self.reading is not None and not self.reading.ended:
            self._iterator = None  # persistent workers are busy: the other pass keeps them
        elif self._iterator is not None and have_ended(self._iterator._workers):
            self.report(own, self._iterator)
            self._iterator = None
        batches: Any = None
        failures = 0
        while True:
            try:
                if batches is None or batches._shutdown:
                    batches = self.started(own)
                batch = next(batches)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                lost = self._iterator if batches is None else batches
                if lost is None or not has_lost_a_worker(lost, error):
                    raise
                failures += 1
                self.report(own, lost, failures, error)
            else:
                failures = 0
                own.pending.popleft()
                yield batch
                continue
            self._iterator = batches = lost = None  # ends the other workers

    @property
    def _index_sampler(self) -> Any:
        return Drawn(self, super()._index_sampler)

    def started(self, own: Pass) -> Iterator[Any]:
        """The batches of workers, from the oldest of a pass that has not arrived."""
        self.reading = own
        if self._iterator is not None and self._iterator._shutdown:  # by a loader it is a copy of
            self._iterator = None
        with only_noticed_when_asked(), torch.random.fork_rng(
                devices=[], enabled=bool(own.pending)):
            batches = super().__iter__()
        read_while_workers_live(batches)
        self.with_workers.add(batches)
        return batches

    def end_workers(self) -> None:
        """End all workers now; others are started if more batches are asked for.

        Where the collector of garbage ends them, torch waits five seconds for each in vain.
        """
        self._iterator = None
        for batches in list(self.with_workers):
            batches._shutdown_workers()

    def report(self,
               own: Pass,
               batches: Any,
               failures: int = 0,
               error: Exception | None = None) -> None:
        """Log that workers died, or raise a WorkersDied if that was so too often."""
        died = ' and '.join(
            f'{worker.pid} ({cause_of(worker.exitcode)})' for worker in batches._workers
            if worker.exitcode is not None) or '(unknown)'  # yapf: disable
        if failures == ATTEMPTS:
            raise WorkersDied(
                f'worker {died} died, as did others before, {ATTEMPTS} times among the same '
                f'samples: {self.waiting(own)}. If it is memory that they lack, take fewer with '
                '--cfg-options train_dataloader.num_workers=N') from error
        print_log(
            f'worker {died} of the data loader died: all its workers are started again, and their '
            f'{len(own.pending)} batches are read again',
            logger='current',
            level=logging.WARNING)

    def waiting(self, own: Pass) -> str:
        """Some images of the batches that are on their way, or their indices."""
        batches = [each if isinstance(each, Iterable) else [each] for each in own.pending]
        tell: Callable[[int], dict[str, Any]] = getattr(self.dataset, 'get_data_info', lambda _: {})
        return shortened([
            tell(index).get('img_path', f'sample {index}') for batch in batches for index in batch
        ])


class Drawn:
    """The batches of indices that a loader's workers are given.

    Args:
        loader: Whose latest pass they belong to.
        sampler: What they are drawn from.
    """

    def __init__(self, loader: RestartingLoader, sampler: Any) -> None:
        self.loader: Any = weakref.proxy(loader)  # whose workers a cycle would keep
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        reading = self.loader.reading  # workers that stay ask again for each pass
        return iter(self.sampler) if reading is None else reading.indices()

    def __len__(self) -> int:
        return len(self.sampler)


class Pass:
    """What a pass through the data has drawn.

    Args:
        sampler: What it draws from.

    Attributes:
        pending: Indices that were drawn, of batches that have not arrived.
        ended: Whether nothing more is read.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.drawn, self.ended = iter(sampler), False
        self.pending: deque[Any] = deque()

    def indices(self) -> Iterator[Any]:
        """Those of batches that have not arrived, then those that are drawn anew."""
        yield from list(self.pending)
        for indices in self.drawn:
            self.pending.append(indices)
            yield indices


def restart_workers(loader: DataLoader) -> DataLoader:
    """Let a loader start its workers again if one is killed, if it has any and it is torch's own.

    Args:
        loader: Changed in place.
    """
    if type(loader) is DataLoader and loader.num_workers > 0 and not isinstance(
            loader.dataset, IterableDataset):
        loader.__class__ = RestartingLoader
        loader.with_workers = weakref.WeakSet()
    return loader


def end_workers(*loops: Any) -> None:
    """End the workers of loops' data loaders, where a run is over and they do nothing.

    Args:
        loops: Of a runner; what has no loader of ours is left alone.
    """
    for loop in loops:
        if isinstance(loader := getattr(loop, 'dataloader', None), RestartingLoader):
            loader.end_workers()


@contextmanager
def only_noticed_when_asked() -> Iterator[None]:
    """While open, loaders that start do not let a worker's death interrupt the main program.

    torch would raise the error at any moment, in the middle of a step too. Who asks for the next
    batch hears of it in any case.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before if before is not None else signal.SIG_DFL)


def has_lost_a_worker(batches: Any, error: Exception) -> bool:
    """Whether an error comes of a worker that died, and not of a sample.

    Args:
        batches: torch's iterator with the workers.
        error: torch's own, or that of a connection to a worker, by which it sends tensors.
    """
    if isinstance(error, RuntimeError) and str(error) != NOT_PINNED:
        return bool(DIED.match(str(error)))
    return have_ended(batches._workers, timeout=1)


def have_ended(workers: list[Any], timeout: float = 0) -> bool:
    """Whether any worker has ended, or does so within some seconds."""
    ended = wait([worker.sentinel for worker in workers], timeout)
    for worker in workers:
        if worker.sentinel in ended:
            worker.join(1)  # its exit code comes a moment later
    return bool(ended)


def read_while_workers_live(batches: Any) -> None:
    """Let a read from workers fail as soon as one has ended, also in the middle of a message.

    The rest of a message would be waited for without end: other processes hold the pipe open.

    Args:
        batches: torch's iterator with the workers.
    """
    workers, reader = batches._workers, batches._worker_result_queue._reader
    ready = select.poll()
    for handle in (reader.fileno(), *(worker.sentinel for worker in workers)):
        ready.register(handle, select.POLLIN)

    def poll(seconds: float) -> bool:
        return bool(ready.poll(max(seconds, 0) * 1000))

    def read(handle: int, size: int) -> bytes:
        if handle in [each for each, _ in ready.poll()]:
            return os.read(handle, size)
        have_ended(workers)
        raise ConnectionError('a worker of a data loader died before it sent its batch')

    own = weakref.proxy(reader)  # a cycle would keep its pipes open
    reader._poll, reader._recv = poll, partial(type(reader)._recv, own, read=read)


def cause_of(exitcode: int) -> str:
    """What ended a process, in words."""
    if exitcode >= 0:
        return f'status {exitcode}'
    name = signal.Signals(-exitcode).name
    return f'{name}, as for lack of memory' if name == 'SIGKILL' else name
