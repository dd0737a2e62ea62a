"""Statistics of a dataset: number, size, class and place of objects, and which occur together.

Shapes: ``I`` images, ``K`` classes, ``N`` objects that are not crowds.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dataset_reader import ImageSet
from .decoded_label_maps import LabelCounts
from .objects import Objects

SMALL, LARGE = 32**2, 96**2  # pixels: COCO's limits of medium objects
FEW = 10  # objects of a class, images of a class in label maps
GRID = 24  # cells of the map of centers, each side


@dataclass(frozen=True)
class Statistics:
    """Statistics of a split.

    Attributes:
        name: Name of the split.
        classes: Names of the classes.
        sizes: Width and height of images, ``(I, 2)``, those that are known.
        amounts: Objects of each class, or pixels in label maps, ``(K,)``.
        images: Images of each class, ``(K,)``.
        num_images: Number of images of the split.
        together: Images that have both classes, ``(K, K)``.
    """
    name: str
    classes: tuple[str, ...]
    sizes: np.ndarray
    amounts: np.ndarray
    images: np.ndarray
    num_images: int
    together: np.ndarray

    def rank_classes(self, limit: int | None = None) -> np.ndarray:
        """Return the classes that occur, the most frequent first."""
        order = np.argsort(-self.amounts, kind='stable')[:limit]
        return order[self.amounts[order] > 0]


@dataclass(frozen=True)
class ObjectStatistics(Statistics):
    """Statistics of objects.

    Attributes:
        per_image: Objects of each image, ``(I,)``.
        crowds: Number of crowds, and objects to be ignored.
        sides: Width and height of boxes, ``(N, 2)``.
        areas: Areas of objects, ``(N,)``.
        relative: Side of the square of a box's area, over that of the image's, ``(N,)``.
        centers: Number of centers of boxes in each part of the image, ``(GRID, GRID)``.
    """
    per_image: np.ndarray
    crowds: int
    sides: np.ndarray
    areas: np.ndarray
    relative: np.ndarray
    centers: np.ndarray

    def count_by_size(self) -> tuple[int, int, int]:
        """Return how many objects are small, medium and large, as COCO counts them."""
        small, large = int((self.areas < SMALL).sum()), int((self.areas >= LARGE).sum())
        return small, len(self.areas) - small - large, large


@dataclass(frozen=True)
class LabelStatistics(Statistics):
    """Statistics of label maps.

    Attributes:
        num_maps: Number of those that could be read, of the images that were decoded.
        unlabeled: Fraction of unlabeled pixels in each of them, ``(num_maps,)``.
        total: Number of all pixels.
    """
    num_maps: int
    unlabeled: np.ndarray
    total: int


def compute_statistics(data: ImageSet, counts: LabelCounts | None) -> Statistics:
    """Return the statistics of a split.

    Args:
        data: Split.
        counts: Counts of its label maps; None for a set of objects.
    """
    if data.objects is not None:
        return compute_object_statistics(data, data.objects)
    assert counts is not None
    pixels = counts.pixels
    has = (pixels[:, :-1] > 0).astype(np.int64)
    total = pixels.sum(axis=1)
    return LabelStatistics(
        name=data.name,
        classes=data.classes,
        sizes=counts.sizes,
        amounts=pixels[:, :-1].sum(axis=0),
        images=has.sum(axis=0),
        num_images=len(data),
        together=has.T @ has,
        num_maps=len(pixels),
        unlabeled=pixels[:, -1] / np.maximum(total, 1),
        total=int(total.sum()))


def compute_object_statistics(data: ImageSet, objects: Objects) -> ObjectStatistics:
    """Return the statistics of a set of objects."""
    chosen, num_classes = objects.singles, len(data.classes)
    labels, images = objects.labels[chosen], objects.images[chosen]
    pairs = np.unique(images * num_classes + labels)  # image and class, each once
    sizes = np.maximum(data.sizes[images], 1)
    sides = np.maximum(objects.sides[chosen], 0)
    centers = (objects.boxes[chosen, :2] + objects.boxes[chosen, 2:]) / 2 / sizes
    cells, *_ = np.histogram2d(centers[:, 1], centers[:, 0], bins=GRID, range=[[0, 1], [0, 1]])
    return ObjectStatistics(
        name=data.name,
        classes=data.classes,
        sizes=data.sizes[(data.sizes > 0).all(axis=1)],
        amounts=np.bincount(labels, minlength=num_classes),
        images=np.bincount(pairs % max(num_classes, 1), minlength=num_classes),
        num_images=len(data),
        together=count_together(pairs, num_classes),
        per_image=objects.count_per_image(len(data)),
        crowds=len(objects) - len(chosen),
        sides=sides,
        areas=objects.areas[chosen],
        relative=np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1)),
        centers=cells)


def count_together(pairs: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the images that have both classes, ``(K, K)``; memory is that of one class's images.

    Args:
        pairs: ``image * K + class``, sorted, each once.
        num_classes: ``K``.
    """
    images, labels = np.divmod(pairs, max(num_classes, 1))
    counts = np.zeros((num_classes, num_classes), np.int64)
    for label in range(num_classes):
        has = np.isin(images, images[labels == label])
        counts[label] = np.bincount(labels[has], minlength=num_classes)
    return counts
