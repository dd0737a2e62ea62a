"""Many images through a model: decoded beside computing, in batches that change no answer."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

A = TypeVar('A')
B = TypeVar('B')
WINDOW = 4  # batches of images may come between an image and others of its shape


def prefetched(function: Callable[[A], B], items: Iterable[A], *, workers: int,
               ahead: int) -> Iterator[B]:
    """``map`` whose results are made in threads beforehand, in order.

    Args:
        function: May raise, which is raised when its result is due.
        items: Taken one at a time; may be endless.
        workers: Threads.
        ahead: How many results may wait.
    """
    remaining = iter(items)
    with ThreadPoolExecutor(workers, thread_name_prefix='colonnade-images') as pool:
        waiting: deque[Future[B]] = deque()
        try:
            while True:
                for item in islice(remaining, ahead + 1 - len(waiting)):
                    waiting.append(pool.submit(function, item))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def in_batches(run: Callable[[list[Any]], list[Any]], items: Iterable[A], *,
               shape_of: Callable[[A], Any | None], batch_size: int) -> Iterator[tuple[A, Any]]:
    """Each item with its answer, in order; only items of one shape share a batch.

    Images of a batch are padded to one size, and these trunks see the padding: with other images
    beside it, an image would get another answer. So an image waits for others of its shape, while
    at most ``WINDOW`` batches of images come after it.

    Args:
        run: Answers of a batch.
        items: What to run.
        shape_of: Of an item; None for one that is not to be run, whose answer is None.
        batch_size: Items at a time.
    """
    waiting: dict[int, A] = {}  # by their numbers, in order
    done: dict[int, tuple[A, Any]] = {}
    due = 0

    def run_like(number: int) -> None:
        shape = shape_of(waiting[number])
        chosen = [n for n, item in waiting.items() if shape_of(item) == shape][:batch_size]
        batch = [waiting.pop(n) for n in chosen]
        done.update(zip(chosen, zip(batch, run(batch), strict=True), strict=True))

    for number, item in enumerate(items):
        if shape_of(item) is None:
            done[number] = item, None
        else:
            waiting[number] = item
            alike = sum(shape_of(other) == shape_of(item) for other in waiting.values())
            if alike == batch_size:
                run_like(number)
        if due in waiting and number - due >= WINDOW * batch_size:
            run_like(due)
        while due in done:
            yield done.pop(due)
            due += 1
    while waiting:
        run_like(next(iter(waiting)))
    yield from (done[number] for number in sorted(done))
