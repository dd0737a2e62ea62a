"""Boxes and masks that look wrong.

Shapes: ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import shapely
from pycocotools import mask as coco_masks

from .dataset_reader import ImageSet
from .issues import WORST, Case, Suspicion
from .objects import Objects, extent_of

TINY = 1.  # pixels
BEYOND = 1.  # pixels that a box may reach out of its image
WHOLE = 0.99  # share of the image's sides
SAME = 0.9  # intersection over union of two boxes of a class
LONG = 20.  # times as long as wide
OUT_OF_BOX = 2., 0.05  # pixels, and share of the box's side, that a mask may reach out of it
CHUNK = 20_000  # objects whose polygons are looked at together
COMPARED = 128  # boxes that are compared with all others at a time


@dataclass(frozen=True)
class Kind:
    """A rule for single objects.

    Attributes:
        title, meaning: As of :class:`Suspicion`.
        badness: How odd each object is, ``(N,)``; 0 or less is not odd.
        describe: What is odd about an object.
    """
    title: str
    meaning: str
    badness: Callable[[ImageSet, Objects], np.ndarray]
    describe: Callable[[ImageSet, Objects, int], str]


def sides_text(data: ImageSet, objects: Objects, index: int) -> str:
    """The sides of a box."""
    width, height = objects.sides[index]
    return f'box of {width:g} x {height:g} pixels'


def box_text(data: ImageSet, objects: Objects, index: int) -> str:
    """A box and the size of its image."""
    box = ', '.join(f'{side:g}' for side in objects.boxes[index].round(1))
    width, height = data.sizes[objects.images[index]]
    return f'box from left, top to right, bottom: {box}; image {width} x {height}'


def tiny(data: ImageSet, objects: Objects) -> np.ndarray:
    """More where the shorter side of a box is shorter."""
    least = objects.sides.min(axis=1, initial=np.inf)
    return np.where(least <= TINY, 2 * TINY - least, 0)


def outside(data: ImageSet, objects: Objects) -> np.ndarray:
    """Pixels that a box reaches out of its image."""
    over = np.maximum(-objects.boxes[:, :2], objects.boxes[:, 2:] - data.sizes[objects.images])
    most = over.max(axis=1, initial=-np.inf)
    return np.where((most > BEYOND) & (data.sizes[objects.images] > 0).all(axis=1), most, 0)


def whole(data: ImageSet, objects: Objects) -> np.ndarray:
    """The share of the image that a box covers, if it is all of it."""
    size = data.sizes[objects.images]
    low, high = np.maximum(objects.boxes[:, :2], 0), np.minimum(objects.boxes[:, 2:], size)
    shares = ((high - low) / np.maximum(size, 1)).min(axis=1, initial=np.inf)
    return np.where(shares >= WHOLE, shares, 0)


def long(data: ImageSet, objects: Objects) -> np.ndarray:
    """How many times longer than wide a box is, or wider than long."""
    sides = np.maximum(objects.sides, 0)
    ratio = sides.max(axis=1, initial=0) / np.maximum(sides.min(axis=1, initial=np.inf), TINY)
    return np.where((ratio > LONG) & (sides.min(axis=1, initial=np.inf) > TINY), ratio, 0)


def beyond_box(data: ImageSet, objects: Objects) -> np.ndarray:
    """Pixels that a mask reaches out of its box."""
    found = np.zeros(len(objects))
    for index, (mask, box) in enumerate(zip(objects.masks, objects.boxes, strict=True)):
        extent = extent_of(mask)
        if extent is None:
            continue
        reach = max(0, (box[:2] - extent[:2]).max(), (extent[2:] - box[2:]).max())
        free = max(OUT_OF_BOX[0], OUT_OF_BOX[1] * (box[2:] - box[:2]).max())
        found[index] = reach if reach > free else 0
    return found


def crossing(data: ImageSet, objects: Objects) -> np.ndarray:
    """The area of objects with a polygon whose outline crosses itself."""
    found = np.zeros(len(objects))
    for start in range(0, len(objects), CHUNK):
        masks = list(enumerate(objects.masks[start:start + CHUNK], start))
        owners = [i for i, mask in masks if isinstance(mask, list) for _ in mask]
        rings = [polygon for _, mask in masks if isinstance(mask, list) for polygon in mask]
        owner = np.array(owners, dtype=np.int64)[crossed(rings)]
        found[owner] = np.maximum(objects.areas[owner], 1)
    return found


def crossed(rings: Sequence[np.ndarray]) -> np.ndarray:
    """Which of some polygons ``(P, 2)`` cross themselves; those that touch themselves do not."""
    if not rings:
        return np.zeros(0, np.int64)
    numbers = np.repeat(np.arange(len(rings)), [len(ring) for ring in rings])
    points = np.concatenate(rings).astype(np.float64)
    shapes = shapely.polygons(shapely.linearrings(points, indices=numbers))
    invalid = np.flatnonzero(~shapely.is_valid(shapes))
    reasons = shapely.is_valid_reason(shapes[invalid])
    return invalid[[reason.startswith('Self-intersection') for reason in reasons]]


KINDS = (
    Kind('Boxes of one pixel or less',
         'A side is at most one pixel long. mmdet leaves out boxes with a side below one pixel.',
         tiny, sides_text),
    Kind('Boxes that reach out of their image',
         'By more than one pixel. The size in the file may be wrong, or the image was turned.',
         outside, box_text),
    Kind('Boxes that cover their whole image',
         'Both sides are at least 99 % of the image\'s. A box may stand for a class of the image.',
         whole, box_text),
    Kind('Boxes more than 20 times as long as wide',
         'Two corners may lie on one line by mistake. Poles and wires are like that too.',
         long, sides_text),
    Kind('Masks that reach out of their box',
         'By more than two pixels and 5 % of the longer side. One may be of another object.',
         beyond_box, sides_text),
    Kind('Polygons that cross themselves',
         'The outline crosses itself, so that a part may count as outside. Large ones come first.',
         crossing, sides_text),
)  # yapf: disable


def suspicions_of_objects(sets: Sequence[ImageSet]) -> Iterator[Suspicion]:
    """Boxes and masks that look wrong, crowds left out."""
    for kind in KINDS:
        found = Suspicion(kind.title, kind.meaning)
        for data in sets:
            objects = data.objects
            assert objects is not None
            badness = np.where(objects.crowds, 0, kind.badness(data, objects))
            worst = np.argsort(-badness, kind='stable')[:WORST].tolist()
            found.add(data.name, int((badness > 0).sum()), [
                Case(data, int(objects.images[i]),
                     f'{caption_of(data, i)}: {kind.describe(data, objects, i)}', (i, ))
                for i in worst if badness[i] > 0
            ])
        yield found
    yield same_boxes(sets)


def caption_of(data: ImageSet, *objects: int) -> str:
    """Split, file, classes and ids of some objects of an image."""
    found = data.objects
    assert found is not None
    names = dict.fromkeys(data.classes[found.labels[i]] for i in objects)
    ids = ' and '.join(str(found.ids[i]) for i in objects)
    return (f'{data.name}: {data.file(int(found.images[objects[0]]))}, {", ".join(names)}, '
            f'annotation{"s" if len(objects) > 1 else ""} {ids}')


def same_boxes(sets: Sequence[ImageSet]) -> Suspicion:
    """Two boxes of one class and nearly one place."""
    suspicion = Suspicion(
        'Two boxes of one class at nearly one place',
        'Their intersection over union is above 0.9. An object may have been annotated twice.')
    for data in sets:
        objects = data.objects
        assert objects is not None
        number, worst = 0, np.zeros((0, 3))
        for found in pairs_of(objects):
            number += len(found)
            found = np.concatenate([worst, found])
            worst = found[np.argsort(-found[:, 2], kind='stable')[:WORST]]
        cases = []
        for *pair, iou in worst.tolist():
            i, j = sorted(map(int, pair))
            text = f'{caption_of(data, i, j)}: intersection over union {iou:.3f}'
            cases.append(Case(data, int(objects.images[i]), text, (i, j)))
        suspicion.add(data.name, number, cases)
    return suspicion


def pairs_of(objects: Objects) -> Iterator[np.ndarray]:
    """Objects of one image and class whose boxes are nearly the same, and their IoU, ``(P, 3)``."""
    chosen, sides = objects.singles, objects.sides
    keys = np.stack([objects.images[chosen], objects.labels[chosen]])
    order = chosen[np.lexsort(keys[::-1])]
    changes = np.flatnonzero(np.any(np.diff(keys[:, np.lexsort(keys[::-1])]), axis=0)) + 1
    for group in np.split(order, changes):
        if len(group) < 2:
            continue
        boxes = np.concatenate([objects.boxes[group, :2], sides[group]], axis=1)
        for start in range(0, len(group) - 1, COMPARED):
            some, others = group[start:start + COMPARED], group[start:]
            ious = coco_masks.iou(boxes[start:start + COMPARED], boxes[start:], [0] * len(others))
            first, second = np.nonzero(np.triu(ious, 1) > SAME)
            if len(first):
                yield np.stack([some[first], others[second], ious[first, second]], axis=1)
