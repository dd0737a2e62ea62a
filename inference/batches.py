"""Batches of images of equal shape, which leave each prediction as it is for a single image."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar('Item')
WINDOW = 4  # most batches of later images that an image waits for others of its shape


def run_in_batches(run: Callable[[list[Any]], list[Any]], items: Iterable[Item], *,
                   get_shape: Callable[[Item],
                                       Any | None], batch_size: int) -> Iterator[tuple[Item, Any]]:
    """Yield each item with its result, in order; only items of one shape share a batch.

    Images of a batch are padded to one size, and columnar backbones see the padding. In a batch
    with larger images, the prediction for an image would differ.

    Items whose shape is None are not run, and their result is None.
    """
    waiting: dict[int, Item] = {}  # position -> item, in order
    done: dict[int, tuple[Item, Any]] = {}
    next_position = 0

    def run_similar(position: int) -> None:
        shape = get_shape(waiting[position])
        similar = [i for i, item in waiting.items() if get_shape(item) == shape][:batch_size]
        batch = [waiting.pop(i) for i in similar]
        done.update(zip(similar, zip(batch, run(batch), strict=True), strict=True))

    for position, item in enumerate(items):
        shape = get_shape(item)
        if shape is None:
            done[position] = item, None
        else:
            waiting[position] = item
            if sum(get_shape(other) == shape for other in waiting.values()) == batch_size:
                run_similar(position)
        if next_position in waiting and position - next_position >= WINDOW * batch_size:
            run_similar(next_position)
        while next_position in done:
            yield done.pop(next_position)
            next_position += 1
    while waiting:
        run_similar(next(iter(waiting)))
    yield from (done[position] for position in sorted(done))
