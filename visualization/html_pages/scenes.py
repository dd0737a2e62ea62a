"""Images with objects or labels, made small enough for a page before they are drawn.

Shapes: ``N`` objects; ``h, w`` height and width of what is shown.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from PIL import Image

from colonnade.datasets.rle import decode_rle, encode_mask
from colonnade.inference.drawing import Color, draw_instances, draw_label_map
from colonnade.inference.results import LabelMap, Result

GAP = 8  # pixels between two images
BLACK: Color = (0, 0, 0)  # color of unlabeled pixels


@dataclass(frozen=True)
class Scene:
    """A small image with what is drawn over it.

    Attributes:
        pixels: RGB values, ``(h, w, 3)``, uint8.
        boxes: Left, top, right and bottom in pixels of the scene, ``(N, 4)``.
        labels: Class of each object, ``(N,)``.
        masks: ``(h, w)``, bool; None without masks, or for an object that has none.
        label_map: Class of each pixel, ``(h, w)``; the number of classes stands for unlabeled.
    """
    pixels: np.ndarray
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    masks: Sequence[np.ndarray | None] | None = None
    label_map: np.ndarray | None = None

    @classmethod
    def from_result(cls, result: Result, pixels: np.ndarray) -> Scene:
        """Return the scene of a result of the image that ``pixels`` are a smaller version of."""
        size: tuple[int, int] = pixels.shape[:2]
        if isinstance(result, LabelMap):
            return cls(pixels, label_map=resize_values(result.labels, size))
        masks = None if result.masks is None else [
            resize_values(decode_rle(mask), size) for mask in result.masks
        ]
        factor = np.tile([size[1] / result.size[1], size[0] / result.size[0]], 2)
        return cls(pixels, result.boxes * factor.astype(np.float32), result.labels, masks)

    @property
    def classes(self) -> set[int]:
        """Indices of the classes that occur."""
        return set(np.unique(self.labels if self.label_map is None else self.label_map).tolist())

    def draw(self, palette: Sequence[Color], captions: Sequence[str] | None = None) -> Image.Image:
        """Return the drawing.

        Args:
            palette: Color of each class.
            captions: Caption of each object. Defaults to none.
        """
        if self.label_map is not None:
            return draw_label_map(self.pixels, self.label_map, [*palette, BLACK])
        masks = None
        if self.masks is not None and any(mask is not None for mask in self.masks):
            empty = np.zeros(self.pixels.shape[:2], bool)
            masks = [encode_mask(empty if mask is None else mask) for mask in self.masks]
        colors = [palette[label] for label in self.labels]
        return draw_instances(self.pixels, self.boxes, masks, colors, captions)


def fit_size(size: Sequence[int], max_side: int, *, exact: bool = False) -> tuple[int, int]:
    """Return the height and width of an image in a square.

    Args:
        size: Shape of the image; the first two entries count.
        max_side: Pixels of the square's sides.
        exact: Whether small images fill the square, rather than being enlarged by an integer.
    """
    height, width = size[:2]
    factor = min(max_side / width, max_side / height)
    factor = factor // 1 if factor > 1 and not exact else factor
    return max(1, round(height * factor)), max(1, round(width * factor))


def resize_values(values: np.ndarray, size: tuple[int, int], *, smooth: bool = False) -> np.ndarray:
    """Return values ``(H, W)`` or ``(H, W, 3)`` at another size ``(h, w)``.

    Args:
        values: Image, mask or label map.
        size: New height and width.
        smooth: Whether to interpolate, for images.
    """
    if values.shape[:2] == size:
        return values
    shrinks = size[0] < values.shape[0]
    method = (cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR) if smooth else cv2.INTER_NEAREST
    source = values.astype(np.uint8) if values.dtype == bool else values
    return cv2.resize(source, size[::-1], interpolation=method).astype(values.dtype)


def clip_boxes(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return boxes that can be drawn: sides in order, and none outside of the image ``(h, w)``."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    limits = np.array([size[1] - 1, size[0] - 1])
    return np.concatenate([low.clip(0, limits), high.clip(0, limits)], axis=1)


def join_images(images: Sequence[Image.Image]) -> Image.Image:
    """Return images in a row, with gaps."""
    width = sum(image.width + GAP for image in images) - GAP
    row = Image.new('RGB', (width, max(image.height for image in images)), 'white')
    x = 0
    for image in images:
        row.paste(image, (x, 0))
        x += image.width + GAP
    return row
