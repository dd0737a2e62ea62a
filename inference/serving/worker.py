"""One thread that computes for many users, in batches that change no answer."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any


class WorkerClosed(RuntimeError):
    """The thread takes no further jobs."""


@dataclass(eq=False)
class Job:
    """Something to compute.

    Attributes:
        run: From items to their answers.
        item: What to compute it of.
        likeness: Jobs of equal likeness may be run at a time.
        future: Where the answer goes.
    """
    run: Callable[[list[Any]], list[Any]]
    item: Any
    likeness: Hashable
    future: Future[Any] = field(default_factory=Future)


class Worker:
    """A thread that takes what waits: the oldest job, and those that are like it.

    A model must not be used by two threads at once, and images of different prepared shapes must
    not share a batch: the backbones would see the padding.
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self._jobs: deque[Job] = deque()
        self._running: list[Job] = []
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name='colonnade-model', daemon=True)
        self._thread.start()

    def submit(self, run: Callable[[list[Any]], list[Any]], item: Any,
               likeness: Hashable) -> Future[Any]:
        """Have ``run([item, ...])`` computed, together with other jobs of equal likeness."""
        job = Job(run, item, likeness)
        with self._changed:
            if self._closed:
                raise WorkerClosed('the server ends')
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function called by the thread, alone."""
        return self.submit(lambda _: [function(*arguments)], None, object())

    def close(self) -> None:
        """Give up what waits and what is computed now, and end after that."""
        with self._changed:
            self._closed = True
            for job in (*self._jobs, *self._running):
                if not job.future.cancel():  # nobody waits for what is computed now
                    with suppress(InvalidStateError):
                        job.future.set_exception(CancelledError())
            self._jobs.clear()
            self._changed.notify()

    def _work(self) -> None:
        while jobs := self._take():
            self._running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self._run(self._running)
            self._running = []

    def _take(self) -> list[Job]:
        """The oldest job and those like it; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            likeness = self._jobs[0].likeness
            taken = [job for job in self._jobs if job.likeness == likeness][:self.batch_size]
            self._jobs = deque(job for job in self._jobs if job not in taken)
            return taken

    def _run(self, jobs: list[Job]) -> None:
        """Compute a batch; each alone if that fails, so that one user's image stops no other's."""
        if not jobs:
            return
        try:
            answers = jobs[0].run([job.item for job in jobs])
        except Exception as error:  # of somebody's model: its users are told, the thread goes on
            if len(jobs) > 1:
                for job in jobs:
                    self._run([job])
            else:
                with suppress(InvalidStateError):  # given up meanwhile
                    jobs[0].future.set_exception(error)
            return
        for job, answer in zip(jobs, answers, strict=True):
            with suppress(InvalidStateError):
                job.future.set_result(answer)
