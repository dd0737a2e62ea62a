"""What a segmenter answers, and the maps of a trunk and a pyramid."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Colour = tuple[int, int, int]


def size_text(size: tuple[int, int]) -> str:
    """A height and width, said to be such."""
    return f'height {size[0]} and width {size[1]}'


def shares_of(labels: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    """The classes that occur in a label map and their shares of its pixels, the largest first."""
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    order = np.argsort(-counts, kind='stable')
    return {classes[i]: float(counts[i] / labels.size) for i in order if counts[i]}


def legend_of(labels: np.ndarray, classes: Sequence[str],
              palette: Sequence[Colour]) -> list[tuple[str, Colour]]:
    """Each class that occurs in a label map with its share of the pixels, and its colour."""
    colours = dict(zip(classes, palette, strict=True))
    return [(f'{name} {share:.0%}' if share >= 0.005 else f'{name} < 1%', colours[name])
            for name, share in shares_of(labels, classes).items()]


def image_of(labels: np.ndarray, palette: Sequence[Colour], first: int = 0) -> Image.Image:
    """A label map as an image: with the palette if labels fit in 8 bits, else of 16 bits.

    Args:
        labels: ``(H, W)``.
        palette: A colour of each class.
        first: The label of the first class.

    Raises:
        ValueError: If labels do not fit in 16 bits.
    """
    last = first + len(palette) - 1
    if first < 0 or last > 65535:
        raise ValueError(f'labels are from 0 to 65535, got {first} to {last}')
    image = Image.fromarray(labels.astype(np.uint8 if last < 256 else np.uint16) + first)
    if last < 256:
        colours = [(0, 0, 0)] * first + list(palette)
        image.putpalette([value for colour in colours for value in colour])
    return image


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap:
    """The class of each pixel of an image.

    Attributes:
        size: Height and width of the image.
        classes: The names of all classes that the model knows.
        palette: Their colours.
        labels: Indices in ``classes``, ``(H, W)``, uint8, or uint16 with over 256 classes.
        source: The path of the image, if it was given by one.
    """
    size: tuple[int, int]
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    labels: np.ndarray
    source: str | None = None

    def __repr__(self) -> str:
        shown = ', '.join(text for text, _ in legend_of(self.labels, self.classes, self.palette))
        return f'label map of {size_text(self.size)}: {shown}'

    def save(self, stem: str | Path) -> list[Path]:
        """Write the labels as ``STEM.png``, and the shares of the classes as ``STEM.json``.

        Returns:
            The files.

        Raises:
            OSError: If they cannot be written.
        """
        image, about = beside(stem, '.png'), beside(stem, '.json')
        image_of(self.labels, self.palette).save(image)
        write_json(
            about,
            dict(
                source=self.source,
                size=self.size,
                labels=image.name,
                shares=shares_of(self.labels, self.classes)))
        return [image, about]


@dataclass(frozen=True, eq=False, repr=False)
class Maps:
    """The maps of a trunk and a pyramid for an image, as the network gives them.

    Attributes:
        size: Height and width of the image.
        maps: Each ``(C, h, w)``, float32, by its name.
        source: The path of the image, if it was given by one.
    """
    size: tuple[int, int]
    maps: Mapping[str, np.ndarray]
    source: str | None = None

    def __repr__(self) -> str:
        shapes = ', '.join(f'{name} {values.shape}' for name, values in self.maps.items())
        return f'maps of an image of {size_text(self.size)}: {shapes}'

    def save(self, stem: str | Path) -> list[Path]:
        """Write the maps as ``STEM.npz``.

        Returns:
            The file.

        Raises:
            OSError: If it cannot be written.
        """
        path = beside(stem, '.npz')
        with path.open('wb') as file:
            np.savez(file, **self.maps)
        return [path]


def beside(stem: str | Path, suffix: str) -> Path:
    """A path with a suffix behind its whole name, dots included."""
    stem = Path(stem)
    return stem.with_name(stem.name + suffix)


def write_json(path: Path, content: Any) -> None:
    """Write what JSON can hold.

    Raises:
        OSError: If it cannot be written.
    """
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + '\n', encoding='utf-8')
