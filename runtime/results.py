"""Predictions for an image: instances, a label map, segments, or feature maps."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from .images import ImageError

Color = tuple[int, int, int]
BLOCK = 2**24  # pixels counted at once, which takes 128 MB
AnyResult = TypeVar('AnyResult', bound='Result')
AnyInstances = TypeVar('AnyInstances', bound='Instances')


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Prediction for an image."""
    size: tuple[int, int]  # height and width of the image
    classes: tuple[str, ...]  # names of all classes of the model
    palette: tuple[Color, ...]  # color of each class, (red, green, blue)

    def replace(self: AnyResult, **attributes: Any) -> AnyResult:
        """Return a copy with new values of some attributes."""
        return replace(self, **attributes)

    def filter_by_score(self: AnyResult, threshold: float) -> AnyResult:
        """Return the result without instances with a score below ``threshold``."""
        return self


@dataclass(frozen=True, eq=False, repr=False)
class Instances(Result):
    """Detected objects, by descending score.

    Attributes:
        boxes: Left, top, right and bottom in pixels of the image, ``(N, 4)``, float32.
        scores: ``(N,)``, float32, from 0 to 1.
        labels: Indices in ``classes``, ``(N,)``, int64.
        masks: ``(N, H, W)``, bool; None if the model predicts only boxes.
        source: Path of the image, if it was passed as a path.
    """
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: Any = None
    source: str | None = None

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        texts = [f'{n} {s:.2f}' for n, s in zip(self.names[:8], self.scores, strict=False)]
        if len(self) > 8:
            texts.append(f'{len(self) - 8} more')
        details = f': {", ".join(texts)}' if texts else ''
        return f'{len(self)} instances, image of {format_size(self.size)}{details}'

    @property
    def names(self) -> tuple[str, ...]:
        """Class of each instance."""
        return tuple(self.classes[label] for label in self.labels)

    def select(self: AnyInstances, indices: Sequence[int] | np.ndarray) -> AnyInstances:
        """Return the instances with these indices, or where a boolean array is true."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        return self.replace(
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            labels=self.labels[chosen],
            masks=None if self.masks is None else self._select_masks(chosen))

    def _select_masks(self, indices: np.ndarray) -> Any:
        return self.masks[indices]

    def filter_by_score(self: AnyInstances, threshold: float) -> AnyInstances:
        """Return the instances with a score of at least ``threshold``."""
        return self.select(self.scores >= threshold)

    def sorted(self: AnyInstances) -> AnyInstances:
        """Return the instances by descending score.

        Raises:
            ImageError: If boxes or scores are NaN or infinite.
        """
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.scores).all()):
            raise ImageError('the model predicted NaN or infinite boxes or scores')
        return self.select(np.argsort(-self.scores, kind='stable'))

    def get_rles(self) -> Sequence[dict[str, Any]]:
        """Return the masks as uncompressed run-length encodings of COCO.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        if self.masks is None:
            raise ValueError('the model predicts boxes without masks')
        return [dict(size=list(self.size), counts=count_runs(mask)) for mask in self.masks]

    def save(self, stem: str | Path) -> list[Path]:
        """Write the instances as ``STEM.json``, and return its path."""
        entries: list[dict[str, Any]] = [
            dict(label=name, score=float(score), box=box.tolist())
            for name, score, box in zip(self.names, self.scores, self.boxes, strict=True)
        ]
        if self.masks is not None:
            for entry, rle in zip(entries, self.get_rles(), strict=True):
                entry['mask'] = rle
        path = add_suffix(stem, '.json')
        write_json(path, dict(source=self.source, size=self.size, instances=entries))
        return [path]


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap(Result):
    """Class of each pixel of an image.

    Attributes:
        labels: Indices in ``classes``, ``(H, W)``, uint8, or uint16 with over 256 classes.
        source: Path of the image, if it was passed as a path.
    """
    labels: np.ndarray
    source: str | None = None

    def __repr__(self) -> str:
        classes = ', '.join(text for text, _ in self.legend())
        return f'label map of {format_size(self.size)}: {classes}'

    def class_fractions(self) -> dict[str, float]:
        """Return the fraction of pixels of each class that occurs, in descending order."""
        rows = max(1, BLOCK // max(1, self.labels.shape[1]))
        counts = sum(
            np.bincount(self.labels[start:start + rows].ravel(), minlength=len(self.classes))
            for start in range(0, len(self.labels), rows))
        order = np.argsort(-counts, kind='stable')
        return {self.classes[i]: float(counts[i] / self.labels.size) for i in order if counts[i]}

    def legend(self) -> list[tuple[str, Color]]:
        """Return name with fraction, and color, of each class that occurs."""
        colors = dict(zip(self.classes, self.palette, strict=True))
        return [(f'{name} {fraction:.0%}' if fraction >= 0.005 else f'{name} < 1%', colors[name])
                for name, fraction in self.class_fractions().items()]

    def to_image(self, first: int = 0) -> Image.Image:
        """Return the labels as an image of 8 bits with the palette, or of 16 bits if necessary.

        Args:
            first: Label of the first class; 1 if label 0 means unlabeled, as in ADE20K.

        Raises:
            ValueError: If labels do not fit in 16 bits.
        """
        last = first + len(self.palette) - 1
        if first < 0 or last > 65535:
            raise ValueError(f'labels must be between 0 and 65535, got {first} to {last}')
        image = Image.fromarray(self.labels.astype(np.uint8 if last < 256 else np.uint16) + first)
        if last < 256:
            colors = [(0, 0, 0)] * first + list(self.palette)
            image.putpalette([value for color in colors for value in color])
        return image

    def save(self, stem: str | Path) -> list[Path]:
        """Write labels as ``STEM.png`` and class fractions as ``STEM.json``; return both paths."""
        image, info = add_suffix(stem, '.png'), add_suffix(stem, '.json')
        self.to_image().save(image)
        fractions = self.class_fractions()
        write_json(info,
                   dict(source=self.source, size=self.size, labels=image.name, shares=fractions))
        return [image, info]


@dataclass(frozen=True, eq=False, repr=False)
class PanopticMap(Result):
    """Segments of an image, which do not overlap: one per object, and one per class of stuff.

    Attributes:
        segments: Number of the segment of each pixel, ``(H, W)``, int32, from 1; 0 for none.
        labels: Class of each segment, from number 1 on, as indices in ``classes``, ``(S,)``, int64.
        num_things: Number of classes of objects, which come first in ``classes``.
        source: Path of the image, if it was passed as a path.
    """
    segments: np.ndarray
    labels: np.ndarray
    num_things: int
    source: str | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        names = ', '.join(self.names[:8]) + (f', {len(self) - 8} more' if len(self) > 8 else '')
        return (f'{len(self)} segments, image of {format_size(self.size)}'
                f'{": " if names else ""}{names}')

    @property
    def names(self) -> tuple[str, ...]:
        """Class of each segment."""
        return tuple(self.classes[label] for label in self.labels)

    @property
    def areas(self) -> np.ndarray:
        """Pixels of each segment, ``(S,)``, int64."""
        return np.bincount(self.segments.ravel(), minlength=len(self) + 1)[1:]

    def to_image(self) -> Image.Image:
        """Return the numbers of the segments as colors: red + 256 green + 65536 blue (COCO)."""
        channels = [self.segments >> shift & 255 for shift in (0, 8, 16)]
        return Image.fromarray(np.stack(channels, -1).astype(np.uint8))

    def segments_info(self) -> list[dict[str, Any]]:
        """Return number, class and area of each segment, and whether it is an object."""
        return [
            dict(id=number, label=name, isthing=bool(label < self.num_things), area=int(area))
            for number, (
                name, label,
                area) in enumerate(zip(self.names, self.labels, self.areas, strict=True), 1)
        ]

    def save(self, stem: str | Path) -> list[Path]:
        """Write segments as ``STEM.png`` and their classes as ``STEM.json``; return both paths."""
        image, info = add_suffix(stem, '.png'), add_suffix(stem, '.json')
        self.to_image().save(image)
        write_json(
            info,
            dict(
                source=self.source,
                size=self.size,
                segments=image.name,
                segments_info=self.segments_info()))
        return [image, info]


def number_segments(codes: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Number the segments of mmdet's panoptic map from 1.

    Args:
        codes: Class + 1000 times the number of the object, ``(H, W)``; ``num_classes`` for none.
        num_classes: Number of classes.

    Returns:
        ``segments`` and ``labels`` of a :class:`PanopticMap`.
    """
    values, segments = np.unique(codes, return_inverse=True)
    labels = values % 1000
    is_segment = labels < num_classes
    numbers = np.where(is_segment, np.cumsum(is_segment), 0)
    return numbers[segments].reshape(codes.shape).astype(np.int32), labels[is_segment]


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMaps:
    """Feature maps of a backbone and its pyramid for an image."""
    size: tuple[int, int]  # height and width of the image
    maps: Mapping[str, np.ndarray]  # feature maps (C, h, w), float32, by name
    source: str | None = None  # path of the image, if it was passed as a path

    def __repr__(self) -> str:
        shapes = ', '.join(f'{name} {values.shape}' for name, values in self.maps.items())
        return f'feature maps of an image of {format_size(self.size)}: {shapes}'

    def save(self, stem: str | Path) -> list[Path]:
        """Write the maps as ``STEM.npz``, and return its path."""
        path = add_suffix(stem, '.npz')
        with path.open('wb') as file:
            np.savez(file, **self.maps)
        return [path]


def format_size(size: tuple[int, int]) -> str:
    """Format a height and width."""
    return f'height {size[0]} and width {size[1]}'


def count_runs(mask: np.ndarray) -> list[int]:
    """Return run lengths of a mask ``(H, W)`` in column-major order; the first is of false."""
    pixels = mask.T.ravel()
    edges = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    start = [0, 0] if len(pixels) and pixels[0] else [0]
    return np.diff([*start, *edges.tolist(), len(pixels)]).tolist()


def add_suffix(stem: str | Path, suffix: str) -> Path:
    """Append a suffix to a path, whose name can contain dots."""
    stem = Path(stem)
    return stem.with_name(stem.name + suffix)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + '\n', encoding='utf-8')
