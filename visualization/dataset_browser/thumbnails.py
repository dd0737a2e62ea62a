"""Images with their annotations, made small enough for a page before they are drawn.

Shapes: ``N`` objects; ``h, w`` height and width of what is shown.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from colonnade.datasets.rle import encode_mask
from colonnade.inference.drawing import Colour, draw_instances, draw_label_map
from colonnade.runtime.images import read_image

from .dataset_reader import ImageSet
from .objects import Mask, as_pixels

LARGE, TILE = 540, 260  # pixels of a page: two and four pictures side by side
MOST_CAPTIONS = 24  # more hide the image
BLACK: Colour = (0, 0, 0)  # what unlabelled pixels are drawn in


@dataclass(frozen=True)
class Scene:
    """What a picture shows.

    Attributes:
        pixels: RGB values, ``(h, w, 3)``, uint8.
        boxes: Left, top, right and bottom in pixels of the picture, ``(N, 4)``.
        labels: The class of each object, ``(N,)``.
        masks: ``(h, w)``, bool; None where there are none, or of an object that has none.
        label_map: The class of each pixel, ``(h, w)``; the number of classes stands for unlabelled.
    """
    pixels: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    masks: Sequence[np.ndarray | None] | None = None
    label_map: np.ndarray | None = None

    def draw(self,
             classes: Sequence[str],
             palette: Sequence[Colour],
             *,
             captions: bool = False) -> Image.Image:
        """The picture.

        Args:
            classes, palette: Names and colours.
            captions: Whether boxes have names, where they are not too many.
        """
        if self.label_map is not None:
            return draw_label_map(self.pixels, self.label_map, [*palette, BLACK])
        masks = None
        if self.masks is not None and any(mask is not None for mask in self.masks):
            empty = np.zeros(self.pixels.shape[:2], bool)
            masks = [encode_mask(empty if mask is None else mask) for mask in self.masks]
        named = captions and len(self.labels) <= MOST_CAPTIONS
        return draw_instances(self.pixels, self.boxes, masks,
                              [palette[label] for label in self.labels],
                              [classes[label] for label in self.labels] if named else None)


def shown_size(size: Sequence[int], most: int, *, exact: bool = False) -> tuple[int, int]:
    """Height and width of a picture: at most so wide and high.

    Args:
        size: Height and width of the image, then what else an array's shape says.
        most: Pixels of the picture's sides.
        exact: Whether small images are enlarged to that, instead of by a whole number.
    """
    height, width = size[:2]
    factor = min(most / width, most / height)
    factor = factor // 1 if factor > 1 and not exact else factor
    return max(1, round(height * factor)), max(1, round(width * factor))


def resized(values: np.ndarray, size: tuple[int, int], *, smooth: bool = False) -> np.ndarray:
    """Values ``(H, W)`` or ``(H, W, 3)`` at another size ``(h, w)``."""
    if values.shape[:2] == size:
        return values
    small = size[0] < values.shape[0]
    method = (cv2.INTER_AREA if small else cv2.INTER_LINEAR) if smooth else cv2.INTER_NEAREST
    flat = values.astype(np.uint8) if values.dtype == bool else values
    return cv2.resize(flat, size[::-1], interpolation=method).astype(values.dtype)


def mask_at(mask: Mask, full: tuple[int, int], size: tuple[int, int]) -> np.ndarray | None:
    """A mask at another size than its image's; polygons are drawn at that size."""
    if mask is None:
        return None
    if isinstance(mask, list):
        factor = np.array([size[1] / full[1], size[0] / full[0]])
        return as_pixels([polygon * factor for polygon in mask], size)
    return resized(as_pixels(mask, full), size)


def annotated(data: ImageSet, index: int, most: int) -> Scene:
    """An image as its files have it, with all its annotations.

    Args:
        data: Its set.
        index: Of the image.
        most: Pixels of the picture's sides.

    Raises:
        OSError, ValueError: If image or label map cannot be read.
    """
    pixels = read_image(data.paths[index])
    full: tuple[int, int] = pixels.shape[:2]
    size = shown_size(full, most)
    small = resized(pixels, size, smooth=True)
    if data.objects is None:
        labels = resized(np.minimum(data.maps[index].read(), len(data.classes)), size)
        return Scene(small, np.zeros((0, 4)), np.zeros(0, int), label_map=labels)
    chosen = data.objects.of_image(index)
    factor = np.tile([size[1] / full[1], size[0] / full[0]], 2)
    masks = [mask_at(data.objects.masks[i], full, size) for i in chosen]
    boxes = within(data.objects.boxes[chosen] * factor, size)
    return Scene(small, boxes, data.objects.labels[chosen], masks)


def within(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Boxes that can be drawn: sides in order, and none beyond the picture."""
    height, width = size
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    limits = np.array([width - 1, height - 1])
    return np.concatenate([low.clip(0, limits), high.clip(0, limits)], axis=1)
