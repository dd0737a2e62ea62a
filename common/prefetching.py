"""Background threads that compute results before they are requested."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar('A')
B = TypeVar('B')


def prefetch_map(function: Callable[[A], B], items: Iterable[A], *, workers: int,
                 ahead: int) -> Iterator[B]:
    """Yield ``map(function, items)``, computed ahead in threads; ``items`` may be endless.

    An error of ``function`` is raised when its result is due.

    Args:
        workers: Number of threads.
        ahead: Maximum number of waiting results.
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
