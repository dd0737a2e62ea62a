"""What models answer: instances of a detector, the label map of a segmenter."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, encode_mask, make_json_rle
from colonnade.runtime import results
from colonnade.runtime.images import Source, read_image

from .arrays import as_rgb, is_array
from .drawing import draw_instances, draw_label_map, with_legend


@dataclass(frozen=True, eq=False, repr=False)
class Instances(results.Instances):
    """Objects with their masks, if the model predicts any.

    See :class:`colonnade.runtime.results.Instances` for the other attributes.

    Attributes:
        masks: RLEs, as COCO's JSON files have them; None if the model predicts only boxes.
        image: RGB values of the image, ``(H, W, 3)``, if it was not given by a path.
    """
    masks: tuple[dict[str, Any], ...] | None = None
    image: np.ndarray | None = None

    def _take_masks(self, indices: np.ndarray) -> tuple[dict[str, Any], ...]:
        assert self.masks is not None
        return tuple(self.masks[index] for index in indices)

    def run_lengths(self) -> tuple[dict[str, Any], ...]:
        """Return the masks as RLEs.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        if self.masks is None:
            raise UserError('the model finds boxes, and no masks')
        return self.masks

    def decode_masks(self) -> np.ndarray:
        """Return the masks as an array ``(N, H, W)``, bool.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        masks = [decode_rle(mask) for mask in self.run_lengths()]
        return np.stack(masks) if masks else np.zeros((0, *self.size), dtype=bool)

    def to_coco(self, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict]:
        """Return the instances as entries of COCO's result files, with the same values as mmdet's.

        Args:
            image_id: ID of the image.
            category_ids: COCO category ID of each class. Defaults to 1, 2, …
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

    def to_json(self, *, masks: bool = False) -> dict[str, Any]:
        """Return class, score and box of each instance, as the server answers them.

        Args:
            masks: Whether to add the masks, as RLEs.
        """
        entries = []
        for index, name in enumerate(self.names):
            entry: dict[str, Any] = {
                'class': name,
                'score': round(float(self.scores[index]), 4),
                'box': [round(float(value), 2) for value in self.boxes[index]],
            }
            if masks and self.masks is not None:
                entry['mask'] = self.masks[index]
            entries.append(entry)
        return dict(instances=entries)

    def draw(self,
             image: Source | None = None,
             *,
             threshold: float = 0.3,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """Return the image with boxes, masks, classes and scores.

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
            read_pixels(self, image),
            shown.boxes,
            shown.masks,
            colours,
            captions if legend else None,
            opacity=opacity)


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap(results.LabelMap):
    """Class of each pixel of an image, which can also be drawn.

    See :class:`colonnade.runtime.results.LabelMap` for the other attributes.

    Attributes:
        image: RGB values of the image, ``(H, W, 3)``, if it was not given by a path.
    """
    image: np.ndarray | None = None

    def to_json(self, *, masks: bool = False) -> dict[str, Any]:
        """Return the classes that occur with their shares of the pixels, as the server answers.

        Args:
            masks: Whether to add the mask of each class, as an RLE.
        """
        entries = []
        for name, share in self.shares().items():
            entry: dict[str, Any] = {'class': name, 'share': round(share, 6)}
            if masks:
                where = self.labels == self.classes.index(name)
                entry['mask'] = make_json_rle(encode_mask(where))
            entries.append(entry)
        return dict(classes=entries)

    def draw(self,
             image: Source | None = None,
             *,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """Return the image with the colors of the classes over it.

        Args:
            image: As it was predicted. Defaults to the kept ``image``, or that of ``source``.
            opacity: Of the colours, from 0 to 1.
            legend: Whether to list the classes that occur beneath the image.

        Raises:
            ImageError: If the image cannot be read.
            ValueError: If it is of another size.
        """
        drawn = draw_label_map(read_pixels(self, image), self.labels, self.palette, opacity=opacity)
        return with_legend(drawn, self.legend()) if legend else drawn


Result = Instances | LabelMap


def read_pixels(result: Result, image: Source | None) -> np.ndarray:
    """Return the image that a result belongs to: RGB values, ``(H, W, 3)``.

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
