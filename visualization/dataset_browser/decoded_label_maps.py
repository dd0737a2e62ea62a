"""Label maps that are decoded once: pixels of each class, sizes, islands."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from colonnade.common.prefetching import prefetch_map

from .dataset_reader import ImageSet

ISLAND = 10  # pixels: a connected component of a class with fewer is an island
WORKERS = 2  # threads that decode


@dataclass(frozen=True)
class LabelCounts:
    """Counts of label maps.

    Attributes:
        images: Indices of the images that were decoded, ``(I,)``.
        sizes: Width and height, ``(I, 2)``.
        foreign: Pixels whose label no class has, ``(I,)``.
        islands: Connected components of fewer than ``ISLAND`` pixels, ``(I,)``.
        pixels: Pixels of each class, and unlabeled in the last column, ``(I, K + 1)``.
        errors: Index and reason of what could not be read.
    """
    images: np.ndarray
    sizes: np.ndarray
    foreign: np.ndarray
    islands: np.ndarray
    pixels: np.ndarray
    errors: list[tuple[int, str]]


def count_labels(data: ImageSet, indices: Sequence[int],
                 report: Callable[[int], None]) -> LabelCounts:  # yapf: disable
    """Decode the label maps of some images and count.

    Args:
        data: Set of the images.
        indices: Indices of the images.
        report: Called with the number of images that are done.
    """
    num_classes, images, rows, errors = len(data.classes), [], [], []

    def count(index: int) -> list[int] | str:
        try:
            labels = data.maps[index].read()
        except (OSError, ValueError) as error:
            return str(error)
        pixels = np.bincount(labels.ravel(), minlength=num_classes + 1)
        foreign = pixels[num_classes + 1:].sum()
        islands = len(find_islands(labels, num_classes))
        return [*labels.shape[::-1], foreign, islands, *pixels[:num_classes + 1]]

    counted = prefetch_map(count, indices, workers=WORKERS, ahead=2 * WORKERS)
    for done, (index, row) in enumerate(zip(indices, counted, strict=True), 1):
        if isinstance(row, str):
            errors.append((index, row))
        else:
            images.append(index)
            rows.append(row)
        report(done)
    table = np.array(rows, dtype=np.int64).reshape(-1, 5 + num_classes)
    return LabelCounts(
        np.array(images, dtype=np.int64), table[:, :2], table[:, 2], table[:, 3], table[:, 4:],
        errors)


def find_islands(labels: np.ndarray, num_classes: int) -> list[tuple[float, float]]:
    """Return the islands in a label map: column and row of each.

    Args:
        labels: Label map, ``(H, W)``; pixels that touch at a corner are connected.
        num_classes: Labels from there on are not classes.
    """
    islands = []
    for label in np.unique(labels[labels < num_classes]):
        num_parts, _, stats, centers = cv2.connectedComponentsWithStats(
            (labels == label).astype(np.uint8), connectivity=8)
        for part in range(1, num_parts):
            if stats[part, cv2.CC_STAT_AREA] < ISLAND:
                x, y = centers[part]
                islands.append((float(round(x)), float(round(y))))
    return islands
