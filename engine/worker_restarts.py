"""Workers of data loaders that are killed, and started again."""
from __future__ import annotations

import logging
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from mmengine.logging import print_log
from torch.utils.data import DataLoader, IterableDataset

from .class_checks import shortened

ATTEMPTS = 3  # without a batch in between
DIED = re.compile(r'DataLoader worker \(pid')  # what torch's errors of workers that died begin with


class WorkersDied(ChildProcessError):
    """Workers of a data loader died again and again at the same batch."""


class RestartingLoader(DataLoader):
    """torch's data loader, which starts its workers again if one of them was killed.

    Batches that are on their way are read again: none is lost, none comes twice, and their order is
    that of the sampler.
    """

    def __iter__(self) -> Iterator[Any]:
        """The batches.

        Raises:
            WorkersDied: If workers die several times before the same batch.
        """
        self.pending: deque[Any] = deque()  # what the samplers drew, and has not arrived
        self.drawn = iter(super()._index_sampler)
        batches: Any = self.started()
        failures = 0
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except RuntimeError as error:
                if not DIED.match(str(error)):
                    raise
                failures += 1
                self.report(batches, failures, error)
            else:
                failures = 0
                self.pending.popleft()
                yield batch
                continue
            self._iterator = batches = None  # ends the other workers
            batches = self.started()

    @property
    def _index_sampler(self) -> Any:
        return Drawn(self, super()._index_sampler)

    def started(self) -> Iterator[Any]:
        """The batches of new workers, from the oldest that has not arrived."""
        with only_noticed_when_asked(), torch.random.fork_rng(
                devices=[], enabled=bool(self.pending)):
            return super().__iter__()

    def report(self, batches: Any, failures: int, error: RuntimeError) -> None:
        """Log that workers died, or raise a WorkersDied if that was so too often."""
        died = ' and '.join(
            f'{worker.pid} ({cause_of(worker.exitcode)})' for worker in batches._workers
            if worker.exitcode not in (None, 0)) or 'of a data loader'  # yapf: disable
        if failures == ATTEMPTS:
            raise WorkersDied(
                f'worker {died} died, as did others before, {ATTEMPTS} times among the same '
                f'samples: {self.waiting()}. If it is memory that they lack, take fewer with '
                '--cfg-options train_dataloader.num_workers=N') from error
        print_log(
            f'worker {died} of the data loader died: all its workers are started again, and their '
            f'{len(self.pending)} batches are read again',
            logger='current',
            level=logging.WARNING)

    def waiting(self) -> str:
        """Some images of the batches that are on their way, or their indices."""
        batches = [each if isinstance(each, Iterable) else [each] for each in self.pending]
        tell: Callable[[int], dict[str, Any]] = getattr(self.dataset, 'get_data_info', lambda _: {})
        return shortened([
            tell(index).get('img_path', f'sample {index}') for batch in batches for index in batch
        ])


class Drawn:
    """The batches of indices that a loader's workers are given.

    Args:
        loader: Whose pending batches come first.
        sampler: What they are drawn from.
    """

    def __init__(self, loader: RestartingLoader, sampler: Any) -> None:
        self.loader, self.sampler = loader, sampler

    def __iter__(self) -> Iterator[Any]:
        pending = self.loader.pending
        for indices in chain(list(pending), self.remembered()):
            yield indices

    def remembered(self) -> Iterator[Any]:
        """What is drawn anew."""
        for indices in self.loader.drawn:
            self.loader.pending.append(indices)
            yield indices

    def __len__(self) -> int:
        return len(self.sampler)


def restart_workers(loader: DataLoader) -> DataLoader:
    """Let a loader start its workers again if one is killed, if it has any and it is torch's own.

    Args:
        loader: Changed in place.
    """
    if type(loader) is DataLoader and loader.num_workers > 0 and not isinstance(
            loader.dataset, IterableDataset):
        loader.__class__ = RestartingLoader
    return loader


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


def cause_of(exitcode: int) -> str:
    """What ended a process, in words."""
    if exitcode >= 0:
        return f'status {exitcode}'
    name = signal.Signals(-exitcode).name
    return f'{name}, as for lack of memory' if name == 'SIGKILL' else name
