"""Label maps that are decoded once: pixels of each class, sizes, islands."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from colonnade.common.prefetching import prefetched

from .dataset_reader import ImageSet

ISLAND = 10  # pixels: a connected part of a class with fewer is an island
WORKERS = 2  # threads that decode


@dataclass(frozen=True)
class LabelCounts:
    """What is in label maps.

    Attributes:
        images: The indices of the images that were decoded, ``(I,)``.
        sizes: Width and height, ``(I, 2)``.
        pixels: Of each class, and unlabelled in the last column, ``(I, K + 1)``.
        foreign: Pixels whose label no class has, ``(I,)``.
        islands: Connected parts of fewer than ``ISLAND`` pixels, ``(I,)``.
        errors: What could not be read: index and reason.
    """
    images: np.ndarray
    sizes: np.ndarray
    pixels: np.ndarray
    foreign: np.ndarray
    islands: np.ndarray
    errors: list[tuple[int, str]]


def count_labels(data: ImageSet, indices: Sequence[int], report: Callable[[int],
                                                                          None]) -> LabelCounts:
    """Decode the label maps of some images and count.

    Args:
        data: Their set.
        indices: Of the images.
        report: Called with the number of images that are done.
    """
    rows, errors = [], []

    def count(index: int) -> tuple[int, np.ndarray | None, str]:
        try:
            return index, row_of(data.maps[index].read(), len(data.classes)), ''
        except (OSError, ValueError) as error:
            return index, None, str(error)

    counted = prefetched(count, indices, workers=WORKERS, ahead=2 * WORKERS)
    for done, (index, row, error) in enumerate(counted, 1):
        if row is None:
            errors.append((index, error))
        else:
            rows.append((index, row))
        report(done)
    width = 5 + len(data.classes)
    table = np.array([row for _, row in rows], dtype=np.int64).reshape(-1, width)
    return LabelCounts(
        np.array([index for index, _ in rows], dtype=np.int64), table[:, :2], table[:, 4:],
        table[:, 2], table[:, 3], errors)


def row_of(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Width, height, foreign pixels, islands, and pixels of each class of a label map."""
    height, width = labels.shape
    counts = np.bincount(labels.ravel(), minlength=num_classes + 1)
    foreign = counts[num_classes + 1:].sum()
    return np.array([
        width, height, foreign,
        sum(1 for _ in islands_of(labels, num_classes)), *counts[:num_classes + 1]
    ])


def islands_of(labels: np.ndarray, num_classes: int) -> list[tuple[int, int, int]]:
    """The islands in a label map.

    Args:
        labels: ``(H, W)``.
        num_classes: Labels from there on are no classes.

    Returns:
        Label, and column and row of each; pixels that touch at a corner are connected.
    """
    found = []
    for label in np.unique(labels):
        if label >= num_classes:
            continue
        number, _, stats, centres = cv2.connectedComponentsWithStats(
            (labels == label).astype(np.uint8), connectivity=8)
        for part in range(1, number):
            if stats[part, cv2.CC_STAT_AREA] < ISLAND:
                x, y = centres[part]
                found.append((int(label), round(x), round(y)))
    return found
