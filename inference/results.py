"""What models answer: instances of a detector, the label map of a segmenter."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle
from colonnade.runtime import results
from colonnade.runtime.images import Source, read_image
from colonnade.runtime.instances import Boxes
from colonnade.runtime.results import image_of, legend_of, shares_of

from .arrays import as_rgb, is_array
from .drawing import Colour, draw_instances, draw_label_map, with_legend


@dataclass(frozen=True, eq=False, repr=False)
class Instances(Boxes):
    """Objects with their masks, if the model finds any.

    See :class:`~colonnade.runtime.instances.Boxes` for the other attributes.

    Attributes:
        masks: In COCO's run-length code, as its JSON files have it; None of a model of boxes.
        source: The path of the image, if it was given by one.
        image: RGB values of the image, ``(H, W, 3)``, if it was not given by a path.
    """
    masks: tuple[dict[str, Any], ...] | None = None
    source: str | None = None
    image: np.ndarray | None = None

    def changed(self, **attributes: Any) -> Instances:
        """The same with other values of some attributes."""
        return replace(self, **attributes)

    def take(self, indices: Sequence[int] | np.ndarray) -> Instances:
        """The instances of these indices, or those where an array of bool is true."""
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        masks = None if self.masks is None else tuple(self.masks[index] for index in chosen)
        return self.changed(
            boxes=self.boxes[chosen],
            scores=self.scores[chosen],
            labels=self.labels[chosen],
            masks=masks)

    def above(self, threshold: float) -> Instances:
        """Those of at least this score."""
        return self.take(np.flatnonzero(self.scores >= threshold))

    def mask_arrays(self) -> np.ndarray:
        """The masks as ``(N, H, W)``, bool.

        Raises:
            ValueError: If the model finds boxes alone.
        """
        if self.masks is None:
            raise UserError('the model finds boxes, and no masks')
        if not self.masks:
            return np.zeros((0, *self.size), dtype=bool)
        return np.stack([decode_rle(mask) for mask in self.masks])

    def as_coco(self, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict]:
        """The instances as entries of COCO's result files, of the same values as mmdet's.

        Args:
            image_id: Of the image.
            category_ids: Of each class; indices, counted from 1, if not given.
        """
        ids = range(1, len(self.classes) + 1) if category_ids is None else category_ids
        entries = []
        for index, (left, top, right, bottom) in enumerate(self.boxes.tolist()):
            entry = dict(
                image_id=image_id,
                category_id=int(ids[self.labels[index]]),
                bbox=[left, top, right - left, bottom - top],
                score=float(self.scores[index]))
            if self.masks is not None:
                entry['segmentation'] = self.masks[index]
            entries.append(entry)
        return entries

    def draw(self,
             image: Source | None = None,
             *,
             threshold: float = 0.3,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """The image with boxes, masks, classes and scores.

        Args:
            image: As it was predicted. Defaults to the kept ``image``, or that of ``source``.
            threshold: Instances of lower scores are left out.
            opacity: Of masks, from 0 to 1.
            legend: Whether to write class and score.

        Raises:
            ImageError: If the image cannot be read.
            ValueError: If it is of another size, or a setting is not from 0 to 1.
        """
        if not 0 <= threshold <= 1:
            raise UserError(f'threshold is from 0 to 1, got {threshold}')
        shown = self.above(threshold)
        colours = [self.palette[label] for label in shown.labels]
        captions = [f'{n} {s:.2f}' for n, s in zip(shown.names, shown.scores, strict=True)]
        return draw_instances(
            pixels_of(self, image),
            shown.boxes,
            shown.masks,
            colours,
            captions if legend else None,
            opacity=opacity)


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap(results.LabelMap):
    """The class of each pixel of an image, which can also be drawn.

    Attributes:
        image: RGB values of the image, ``(H, W, 3)``, if it was not given by a path.
    """
    image: np.ndarray | None = None

    def changed(self, **attributes: Any) -> LabelMap:
        """The same with other values of some attributes."""
        return replace(self, **attributes)

    def shares(self) -> dict[str, float]:
        """The classes that occur and their shares of the pixels, the largest first."""
        return shares_of(self.labels, self.classes)

    def as_image(self, first: int = 0) -> Image.Image:
        """The labels as an image: with the palette if they fit in 8 bits, else of 16 bits.

        Args:
            first: The label of the first class. Where label 0 stands for unlabelled pixels, as in
                ADE20k's files, it is 1.

        Raises:
            ValueError: If labels do not fit in 16 bits.
        """
        return image_of(self.labels, self.palette, first)

    def draw(self,
             image: Source | None = None,
             *,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """The image with the colours of the classes over it.

        Args:
            image: As it was predicted. Defaults to the kept ``image``, or that of ``source``.
            opacity: Of the colours, from 0 to 1.
            legend: Whether to list the classes that occur beneath the image.

        Raises:
            ImageError: If the image cannot be read.
            ValueError: If it is of another size.
        """
        drawn = draw_label_map(pixels_of(self, image), self.labels, self.palette, opacity=opacity)
        return with_legend(drawn, self.legend()) if legend else drawn

    def legend(self) -> list[tuple[str, Colour]]:
        """Each class that occurs with its share of the pixels, and its colour."""
        return legend_of(self.labels, self.classes, self.palette)


Result = Instances | LabelMap


def pixels_of(result: Result, image: Source | None) -> np.ndarray:
    """The image that a result is of.

    Raises:
        ImageError: If it cannot be read.
        ValueError: If none is known, or it is of another size.
    """
    if image is None:
        image = result.source if result.image is None else result.image
    if image is None:
        raise UserError('the result has no image: pass it, as in draw(image)')
    pixels = as_rgb(image, 'rgb') if is_array(image) else read_image(image)
    if pixels.shape[:2] != result.size:
        height, width = pixels.shape[:2]
        raise UserError(f'the image has {height} x {width} pixels, and the one that was predicted '
                        f'{result.size[0]} x {result.size[1]}')
    return pixels
