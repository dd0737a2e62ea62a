"""Statistics of a dataset: number, size, class and position of objects, and co-occurring classes.

Shapes: ``I`` images, ``K`` classes, ``N`` objects that are not crowds.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dataset_reader import ImageSet
from .image_scan import LabelCounts
from .objects import Objects

SMALL, LARGE = 32**2, 96**2  # pixels: COCO's limits of medium objects
MIN_PER_CLASS = 10  # objects of a class, or images of a class in label maps; fewer are suspicious
GRID = 24  # rows and columns of the map of box centers


@dataclass(frozen=True)
class Statistics:
    """Statistics of a split."""
    name: str  # name of the split
    classes: tuple[str, ...]  # class names
    sizes: np.ndarray  # width and height of the images, (I, 2), where they are known
    amounts: np.ndarray  # number of objects, or pixels in label maps, of each class, (K,)
    images: np.ndarray  # number of images of each class, (K,)
    num_images: int  # number of images in the split
    together: np.ndarray  # number of images that contain both classes, (K, K)

    def rank_classes(self, limit: int | None = None) -> np.ndarray:
        """Return the classes that occur, most frequent first."""
        order = np.argsort(-self.amounts, kind='stable')[:limit]
        return order[self.amounts[order] > 0]


@dataclass(frozen=True)
class ObjectStatistics(Statistics):
    """Statistics of objects."""
    per_image: np.ndarray  # number of objects in each image, (I,)
    crowds: int  # number of crowds and objects to be ignored
    sides: np.ndarray  # width and height of boxes, (N, 2)
    areas: np.ndarray  # areas of objects, (N,)
    relative: np.ndarray  # square root of a box's share of the image area, (N,)
    centers: np.ndarray  # number of box centers in each cell of the image, (GRID, GRID)

    def count_by_size(self) -> tuple[int, int, int]:
        """Return the number of small, medium and large objects as defined by COCO."""
        small, large = int((self.areas < SMALL).sum()), int((self.areas >= LARGE).sum())
        return small, len(self.areas) - small - large, large


@dataclass(frozen=True)
class LabelStatistics(Statistics):
    """Statistics of label maps."""
    num_maps: int  # number of label maps that were decoded
    unlabeled: np.ndarray  # fraction of unlabeled pixels in each, (num_maps,)
    total: int  # number of all pixels


def compute_statistics(data: ImageSet, counts: LabelCounts | None = None) -> Statistics:
    """Return the statistics of a split; label maps need their counts."""
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
    """Return the statistics of objects."""
    chosen, num_classes = objects.singles, len(data.classes)
    labels, images = objects.labels[chosen], objects.images[chosen]
    pairs = np.unique(images * num_classes + labels)  # image and class, each once
    sizes = np.maximum(data.sizes[images], 1)
    sides = np.maximum(objects.sides[chosen], 0)
    centers = (objects.boxes[chosen, :2] + objects.boxes[chosen, 2:]) / 2 / sizes
    cells, *_ = np.histogram2d(centers[:, 1], centers[:, 0], bins=GRID, range=[[0, 1], [0, 1]])
    pair_images, pair_labels = np.divmod(pairs, max(num_classes, 1))
    together = np.zeros((num_classes, num_classes), np.int64)
    for label in range(num_classes):  # A matrix of images and classes would need much memory.
        has = np.isin(pair_images, pair_images[pair_labels == label])
        together[label] = np.bincount(pair_labels[has], minlength=num_classes)
    return ObjectStatistics(
        name=data.name,
        classes=data.classes,
        sizes=data.sizes[(data.sizes > 0).all(axis=1)],
        amounts=np.bincount(labels, minlength=num_classes),
        images=np.bincount(pair_labels, minlength=num_classes),
        num_images=len(data),
        together=together,
        per_image=objects.count_per_image(len(data)),
        crowds=len(objects) - len(chosen),
        sides=sides,
        areas=objects.areas[chosen],
        relative=np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1)),
        centers=cells)
