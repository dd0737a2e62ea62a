"""Downscaled images with objects or labels, and a page section of test images.

Shapes: ``N`` objects; ``h, w`` height and width of the downscaled image.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from colonnade.datasets.rle import encode_mask
from colonnade.inference import Instances, load
from colonnade.inference.drawing import (Color, draw_instances, draw_label_map, draw_segments,
                                         shade_color)
from colonnade.inference.ground_truth import iter_ground_truth

from .page import Section, Table

GAP = 8  # pixels between two images
BLACK: Color = (0, 0, 0)  # color of unlabeled pixels
MAX_NAMES = 30  # classes in a legend
MIN_SIDE = 256  # pixels; smaller images are enlarged


@dataclass(frozen=True)
class Scene:
    """Downscaled image with objects or a label map to draw over it."""
    pixels: np.ndarray  # RGB values, (h, w, 3), uint8
    # Left, top, right and bottom in pixels of the scene, (N, 4).
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))
    # Class of each object, (N,).
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    # Masks (h, w), bool, or None; an object without a mask has None.
    masks: Sequence[np.ndarray | None] | None = None
    # Class of each pixel, (h, w), where the number of classes means unlabeled.
    label_map: np.ndarray | None = None
    is_panoptic: bool = False  # whether masks are panoptic segments, which do not overlap

    @property
    def classes(self) -> set[int]:
        """Indices of the classes that occur."""
        return set(np.unique(self.labels if self.label_map is None else self.label_map).tolist())

    def draw(self, palette: Sequence[Color], captions: Sequence[str] | None = None) -> Image.Image:
        """Return the drawing, given the color of each class and the caption of each object."""
        if self.label_map is not None:
            return draw_label_map(self.pixels, self.label_map, [*palette, BLACK])
        if self.is_panoptic:
            return self._draw_segments(palette, captions)
        masks = None
        if self.masks is not None and any(mask is not None for mask in self.masks):
            empty = np.zeros(self.pixels.shape[:2], bool)
            masks = [encode_mask(empty if mask is None else mask) for mask in self.masks]
        colors = [palette[label] for label in self.labels]
        return draw_instances(self.pixels, self.boxes, masks, colors, captions)

    def _draw_segments(self, palette: Sequence[Color],
                       captions: Sequence[str] | None) -> Image.Image:
        segments, counts = np.zeros(self.pixels.shape[:2], np.int32), Counter[int]()
        boxes, colors = np.zeros((len(self.labels), 4), int), []
        for number, (mask, label) in enumerate(
                zip(self.masks or (), self.labels.tolist(), strict=True), 1):
            if mask is not None:
                segments[mask] = number
                left, top, width, height = cv2.boundingRect(mask.astype(np.uint8))
                boxes[number - 1] = left, top, left + width, top + height
            colors.append(shade_color(palette[label], counts[label]))
            counts[label] += 1
        return draw_segments(self.pixels, segments, boxes, colors, captions)


def fit_size(size: Sequence[int], max_side: int, *, exact: bool = False) -> tuple[int, int]:
    """Return the height and width of an image that fits in a square.

    Small images are enlarged by an integer, or with ``exact`` to fill the square.
    """
    height, width = size[:2]
    factor = min(max_side / width, max_side / height)
    factor = factor // 1 if factor > 1 and not exact else factor
    return max(1, round(height * factor)), max(1, round(width * factor))


def resize_values(values: np.ndarray, size: tuple[int, int], *, smooth: bool = False) -> np.ndarray:
    """Return an image, mask or label map at another height and width; ``smooth`` is for images."""
    if values.shape[:2] == size:
        return values
    shrinks = size[0] < values.shape[0]
    method = (cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR) if smooth else cv2.INTER_NEAREST
    source = values.astype(np.uint8) if values.dtype == bool else values
    return cv2.resize(source, size[::-1], interpolation=method).astype(values.dtype)


def scale_boxes(boxes: np.ndarray, old: Sequence[int], new: Sequence[int]) -> np.ndarray:
    """Return boxes ``(N, 4)`` of an image that is resized from height and width ``old``."""
    return boxes * np.tile([new[1] / old[1], new[0] / old[0]], 2)


def clip_boxes(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return boxes with ordered corners, clipped to the image ``(h, w)``."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    limits = np.array([size[1] - 1, size[0] - 1])
    return np.concatenate([low.clip(0, limits), high.clip(0, limits)], axis=1)


def join_images(images: Sequence[Image.Image]) -> Image.Image:
    """Return images side by side, with gaps."""
    width = sum(image.width + GAP for image in images) - GAP
    row = Image.new('RGB', (width, max(image.height for image in images)), 'white')
    x = 0
    for image in images:
        row.paste(image, (x, 0))
        x += image.width + GAP
    return row


def build_sample_section(title: str,
                         config: str | Path,
                         weights: str | Path,
                         *,
                         rows: Sequence[tuple[str, str]] = (),
                         commands: Sequence[str] = (),
                         limit: int = 8,
                         **options: Any) -> Section:
    """Return a section of test images: annotations on the left, predictions on the right.

    Args:
        title: Heading.
        config: Config of the model.
        weights: Checkpoint of the model.
        rows: Names and values of a table.
        commands: Commands to show.
        limit: Maximum number of images.
        **options: Options of :func:`~colonnade.inference.load`.

    Raises:
        OSError, ValueError: If the model, an image or an annotation cannot be loaded.
    """
    model, images = load(config, weights, **options), []
    for path, truth in iter_ground_truth(model, limit):
        drawings = []
        for result in (truth, model.predict(path)):
            has_captions = isinstance(result, Instances) and min(result.size) >= MIN_SIDE
            drawing = result.draw(legend=has_captions)
            factor = max(1, -(-MIN_SIDE // min(drawing.size)))
            size = drawing.width * factor, drawing.height * factor
            drawings.append(drawing.resize(size, Image.Resampling.NEAREST))
        images.append((Path(path).name, join_images(drawings)))
    legend = list(zip(model.classes, model.palette, strict=True))[:MAX_NAMES]
    tables = [Table((), rows)] if rows else []
    return Section(title, tables=tables, legend=legend, images=images, commands=commands)
