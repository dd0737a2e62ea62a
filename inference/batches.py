"""Many images through a model: decoded beside computing, in batches that change no answer."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

A = TypeVar('A')
WINDOW = 4  # batches of images may come between an image and others of its shape


def in_batches(run: Callable[[list[Any]], list[Any]], items: Iterable[A], *,
               shape_of: Callable[[A], Any | None], batch_size: int) -> Iterator[tuple[A, Any]]:
    """Each item with its answer, in order; only items of one shape share a batch.

    Images of a batch are padded to one size, and these backbones see the padding: with other images
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
