"""What a detector answers."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .results import Colour, beside, size_text, write_json


@dataclass(frozen=True, eq=False, repr=False)
class Boxes:
    """The objects that a detector found in an image, the most certain first.

    Attributes:
        size: Height and width of the image.
        classes: The names of all classes that the model knows.
        palette: Their colours.
        boxes: Left, top, right and bottom in pixels of the image, ``(N, 4)``, float32.
        scores: ``(N,)``, float32, from 0 to 1.
        labels: Indices in ``classes``, ``(N,)``, int64.
    """
    size: tuple[int, int]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        shown = [f'{n} {s:.2f}' for n, s in zip(self.names[:8], self.scores, strict=False)]
        if len(self) > 8:
            shown.append(f'{len(self) - 8} more')
        named = f': {", ".join(shown)}' if shown else ''
        return f'{len(self)} instances, image of {size_text(self.size)}{named}'

    @property
    def names(self) -> tuple[str, ...]:
        """The class of each instance."""
        return tuple(self.classes[label] for label in self.labels)


@dataclass(frozen=True, eq=False, repr=False)
class Instances(Boxes):
    """Objects with their masks, if the model finds any; see :class:`Boxes` too.

    Attributes:
        masks: ``(N, H, W)``, bool; None of a model of boxes.
        source: The path of the image, if it was given by one.
    """
    masks: np.ndarray | None = None
    source: str | None = None

    def run_lengths(self) -> list[dict[str, Any]]:
        """The masks in COCO's run-length code, without compression.

        Raises:
            ValueError: If the model finds boxes alone.
        """
        if self.masks is None:
            raise ValueError('the model finds boxes, and no masks')
        return [dict(size=list(self.size), counts=counts_of(mask)) for mask in self.masks]

    def entries(self) -> Iterator[dict[str, Any]]:
        """What :meth:`save` writes of each instance."""
        codes = None if self.masks is None else self.run_lengths()
        for index, name in enumerate(self.names):
            entry = dict(
                label=name, score=float(self.scores[index]), box=self.boxes[index].tolist())
            yield entry if codes is None else dict(entry, mask=codes[index])

    def save(self, stem: str | Path) -> list[Path]:
        """Write the instances as ``STEM.json``.

        Returns:
            The file.

        Raises:
            OSError: If it cannot be written.
        """
        path = beside(stem, '.json')
        write_json(path, dict(source=self.source, size=self.size, instances=list(self.entries())))
        return [path]


def counts_of(mask: np.ndarray) -> list[int]:
    """The lengths of runs of a mask ``(H, W)`` down its columns; the first is of false."""
    pixels = mask.T.ravel()
    edges = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    start = [0, 0] if len(pixels) and pixels[0] else [0]
    return np.diff([*start, *edges.tolist(), len(pixels)]).tolist()
