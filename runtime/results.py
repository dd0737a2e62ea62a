"""What models find in an image: instances, a label map, or the maps of a backbone and a pyramid."""
from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .images import ImageError

Colour = tuple[int, int, int]
AnyResult = TypeVar('AnyResult', bound='Result')
AnyInstances = TypeVar('AnyInstances', bound='Instances')


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a model found in an image.

    Attributes:
        size: Height and width of the image.
        classes: Names of all classes that the model knows.
        palette: Color of each class, ``(red, green, blue)``.
    """
    size: tuple[int, int]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]

    def changed(self: AnyResult, **attributes: Any) -> AnyResult:
        """Return a copy with other values of some attributes."""
        return replace(self, **attributes)

    def above(self: AnyResult, threshold: float) -> AnyResult:
        """Return the result without instances of a lower score."""
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Instances(Result):
    """Objects that a detector found in an image, by descending score.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, ``(N, 4)``, float32.
        scores: ``(N,)``, float32, from 0 to 1.
        labels: Indices in ``classes``, ``(N,)``, int64.
        masks: ``(N, H, W)``, bool; None if the model predicts only boxes.
        source: Path of the image, if it was given as one.
    """
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: Any = None
    source: str | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        shown = [f'{n} {s:.2f}' for n, s in zip(self.names[:8], self.scores, strict=False)]
        if len(self) > 8:
            shown.append(f'{len(self) - 8} more')
        named = f': {", ".join(shown)}' if shown else ''
        return f'{len(self)} instances, image of {format_size(self.size)}{named}'

    @property
    def names(self) -> tuple[str, ...]:
        """Class of each instance."""
        return tuple(self.classes[label] for label in self.labels)

    def take(self: AnyInstances, indices: Sequence[int] | np.ndarray) -> AnyInstances:
        """Return the instances of these indices, or those where an array of bool is true."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        return self.changed(
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            labels=self.labels[chosen],
            masks=None if self.masks is None else self._take_masks(chosen))

    def _take_masks(self, indices: np.ndarray) -> Any:
        return self.masks[indices]

    def above(self: AnyInstances, threshold: float) -> AnyInstances:
        """Return the instances of at least this score."""
        return self.take(self.scores >= threshold)

    def sorted(self: AnyInstances) -> AnyInstances:
        """Return the instances by descending score.

        Raises:
            ImageError: If there are boxes or scores that are NaN or infinite.
        """
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.scores).all()):
            raise ImageError('the model answers boxes or scores that are not finite')
        return self.take(np.argsort(-self.scores, kind='stable'))

    def run_lengths(self) -> Sequence[dict[str, Any]]:
        """Return the masks as COCO's run-length encodings, here without compression.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        if self.masks is None:
            raise ValueError('the model finds boxes, and no masks')
        return [dict(size=list(self.size), counts=count_runs(mask)) for mask in self.masks]

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield what :meth:`save` writes of each instance."""
        codes = None if self.masks is None else self.run_lengths()
        for index, name in enumerate(self.names):
            entry = dict(
                label=name, score=float(self.scores[index]), box=self.boxes[index].tolist())
            yield entry if codes is None else dict(entry, mask=codes[index])

    def save(self, stem: str | Path) -> list[Path]:
        """Write the instances as ``STEM.json``, and return its path.

        Raises:
            OSError: If it cannot be written.
        """
        path = add_suffix(stem, '.json')
        write_json(path, dict(source=self.source, size=self.size, instances=list(self.entries())))
        return [path]


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap(Result):
    """Class of each pixel of an image.

    Attributes:
        labels: Indices in ``classes``, ``(H, W)``, uint8, or uint16 with over 256 classes.
        source: Path of the image, if it was given as one.
    """
    labels: np.ndarray
    source: str | None = None

    def __repr__(self) -> str:
        shown = ', '.join(text for text, _ in self.legend())
        return f'label map of {format_size(self.size)}: {shown}'

    def shares(self) -> dict[str, float]:
        """Return the classes that occur and their fractions of the pixels, the largest first."""
        counts = np.bincount(self.labels.ravel(), minlength=len(self.classes))
        order = np.argsort(-counts, kind='stable')
        return {self.classes[i]: float(counts[i] / self.labels.size) for i in order if counts[i]}

    def legend(self) -> list[tuple[str, Colour]]:
        """Return each class that occurs with its fraction of the pixels, and its color."""
        colors = dict(zip(self.classes, self.palette, strict=True))
        return [(f'{name} {share:.0%}' if share >= 0.005 else f'{name} < 1%', colors[name])
                for name, share in self.shares().items()]

    def as_image(self, first: int = 0) -> Image.Image:
        """Return the labels as an image: with the palette if they fit in 8 bits, else of 16 bits.

        Args:
            first: Label of the first class. Where label 0 stands for unlabeled pixels, as in
                ADE20K's files, it is 1.

        Raises:
            ValueError: If labels do not fit in 16 bits.
        """
        last = first + len(self.palette) - 1
        if first < 0 or last > 65535:
            raise ValueError(f'labels are from 0 to 65535, got {first} to {last}')
        image = Image.fromarray(self.labels.astype(np.uint8 if last < 256 else np.uint16) + first)
        if last < 256:
            colors = [(0, 0, 0)] * first + list(self.palette)
            image.putpalette([value for color in colors for value in color])
        return image

    def save(self, stem: str | Path) -> list[Path]:
        """Write the labels as ``STEM.png`` and the shares of the classes as ``STEM.json``.

        Returns:
            Paths of both files.

        Raises:
            OSError: If they cannot be written.
        """
        image, about = add_suffix(stem, '.png'), add_suffix(stem, '.json')
        self.as_image().save(image)
        write_json(
            about,
            dict(source=self.source, size=self.size, labels=image.name, shares=self.shares()))
        return [image, about]


@dataclass(frozen=True, eq=False, repr=False)
class Maps:
    """Feature maps of a backbone and a pyramid for an image, as the network gives them.

    Attributes:
        size: Height and width of the image.
        maps: Each ``(C, h, w)``, float32, by its name.
        source: Path of the image, if it was given as one.
    """
    size: tuple[int, int]
    maps: Mapping[str, np.ndarray]
    source: str | None = None

    def __repr__(self) -> str:
        shapes = ', '.join(f'{name} {values.shape}' for name, values in self.maps.items())
        return f'maps of an image of {format_size(self.size)}: {shapes}'

    def save(self, stem: str | Path) -> list[Path]:
        """Write the maps as ``STEM.npz``, and return its path.

        Raises:
            OSError: If it cannot be written.
        """
        path = add_suffix(stem, '.npz')
        with path.open('wb') as file:
            np.savez(file, **self.maps)
        return [path]


def format_size(size: tuple[int, int]) -> str:
    """Return a height and width in words."""
    return f'height {size[0]} and width {size[1]}'


def count_runs(mask: np.ndarray) -> list[int]:
    """Return the lengths of runs of a mask ``(H, W)`` down its columns; the first is of false."""
    pixels = mask.T.ravel()
    edges = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    start = [0, 0] if len(pixels) and pixels[0] else [0]
    return np.diff([*start, *edges.tolist(), len(pixels)]).tolist()


def add_suffix(stem: str | Path, suffix: str) -> Path:
    """Return a path with a suffix after its whole name, dots included."""
    stem = Path(stem)
    return stem.with_name(stem.name + suffix)


def write_json(path: Path, content: Any) -> None:
    """Write what JSON can hold.

    Raises:
        OSError: If it cannot be written.
    """
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + '\n', encoding='utf-8')
