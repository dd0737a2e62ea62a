"""Numbers of a data set: how many objects, of which sizes, of which classes, beside which others.

Shapes: ``I`` images, ``K`` classes, ``N`` objects that are no crowds.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dataset_reader import ImageSet
from .decoded_label_maps import LabelCounts
from .objects import Objects

SMALL, LARGE = 32**2, 96**2  # pixels: COCO's limits of medium objects
FEW = 10  # objects of a class, images of a class in label maps
GRID = 24  # cells of the map of centres, each side


@dataclass(frozen=True)
class Numbers:
    """What plots and tables of a split show.

    Attributes:
        name: Of the split.
        classes: Their names.
        sizes: Width and height of images, ``(I, 2)``, those that are known.
        amounts: Objects of each class, or pixels in label maps, ``(K,)``.
        images: Images of each class, ``(K,)``.
        num_images: All of the split.
        together: Images that have both classes, ``(K, K)``.
    """
    name: str
    classes: tuple[str, ...]
    sizes: np.ndarray
    amounts: np.ndarray
    images: np.ndarray
    num_images: int
    together: np.ndarray

    def frequent(self, most: int) -> np.ndarray:
        """The classes that occur, the most frequent first."""
        order = np.argsort(-self.amounts, kind='stable')[:most]
        return order[self.amounts[order] > 0]


@dataclass(frozen=True)
class ObjectNumbers(Numbers):
    """The same of objects, with their boxes.

    Attributes:
        per_image: Objects of each image, ``(I,)``.
        crowds: How many crowds there are, and objects to be ignored.
        sides: Width and height of boxes, ``(N, 2)``.
        areas: Of objects, ``(N,)``.
        relative: Side of the square of a box's area, over that of the image's, ``(N,)``.
        centres: How many centres of boxes lie in each part of the image, ``(GRID, GRID)``.
    """
    per_image: np.ndarray
    crowds: int
    sides: np.ndarray
    areas: np.ndarray
    relative: np.ndarray
    centres: np.ndarray


@dataclass(frozen=True)
class LabelNumbers(Numbers):
    """The same of label maps.

    Attributes:
        num_maps: Those that could be read, of the images that were decoded.
        unlabelled: Share of unlabelled pixels in each of them, ``(num_maps,)``.
        total: All pixels.
    """
    num_maps: int
    unlabelled: np.ndarray
    total: int


def numbers_of(data: ImageSet, counts: LabelCounts | None) -> Numbers:
    """The numbers of a split.

    Args:
        data: The split.
        counts: Of its label maps; None of a set of objects.
    """
    if data.objects is not None:
        return numbers_of_objects(data, data.objects)
    assert counts is not None  # of label maps
    pixels = counts.pixels
    has = pixels[:, :-1] > 0
    total = pixels.sum(axis=1)
    return LabelNumbers(data.name, data.classes, counts.sizes, pixels[:, :-1].sum(axis=0),
                        has.sum(axis=0), len(data), together(has), len(pixels),
                        pixels[:, -1] / np.maximum(total, 1), int(total.sum()))


def numbers_of_objects(data: ImageSet, objects: Objects) -> ObjectNumbers:
    """The numbers of a set of objects."""
    chosen, num_classes = objects.singles, len(data.classes)
    labels, images = objects.labels[chosen], objects.images[chosen]
    pairs = np.unique(images * num_classes + labels)  # image and class, each once
    sizes = np.maximum(data.sizes[images], 1)
    sides = np.maximum(objects.sides[chosen], 0)
    centres = (objects.boxes[chosen, :2] + objects.boxes[chosen, 2:]) / 2 / sizes
    cells, *_ = np.histogram2d(centres[:, 1], centres[:, 0], bins=GRID, range=[[0, 1], [0, 1]])
    return ObjectNumbers(
        data.name,
        data.classes,
        data.sizes[(data.sizes > 0).all(axis=1)],
        np.bincount(labels, minlength=num_classes),
        np.bincount(pairs % max(num_classes, 1), minlength=num_classes),
        len(data),
        together_of_pairs(pairs, num_classes),
        per_image=objects.counts(len(data)),
        crowds=len(objects) - len(chosen),
        sides=sides,
        areas=objects.areas[chosen],
        relative=np.sqrt(sides.prod(axis=1) / sizes.prod(axis=1)),
        centres=cells)


def together(has: np.ndarray) -> np.ndarray:
    """Images that have both classes, ``(K, K)``, of which image has which, ``(I, K)``."""
    whole = has.astype(np.int64)
    return whole.T @ whole


def together_of_pairs(pairs: np.ndarray, num_classes: int) -> np.ndarray:
    """The same of pairs ``image * K + class``, sorted; memory is that of one class's images."""
    images, labels = np.divmod(pairs, max(num_classes, 1))
    found = np.zeros((num_classes, num_classes), np.int64)
    for label in range(num_classes):
        has = np.isin(images, images[labels == label])
        found[label] = np.bincount(labels[has], minlength=num_classes)
    return found


def by_size(areas: np.ndarray) -> tuple[int, int, int]:
    """How many objects are small, medium and large, as COCO counts them."""
    small, large = int((areas < SMALL).sum()), int((areas >= LARGE).sum())
    return small, len(areas) - small - large, large
