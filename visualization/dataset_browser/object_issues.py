"""Boxes and masks that look wrong.

Shapes: ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


#: how odd each object is by each rule, ``(N,)``, 0 or less if it is not; and what is odd about it
RULES_OF_OBJECTS: dict[str, tuple[Callable[[ImageSet, Objects], np.ndarray],
                                  Callable[[ImageSet, Objects, int], str]]] = {
    'tiny-box': (tiny, sides_text),
    'box-beyond': (outside, box_text),
    'whole-image-box': (whole, box_text),
    'long-box': (long, sides_text),
    'mask-beyond-box': (beyond_box, sides_text),
    'cross-polygon': (crossing, sides_text),
}  # yapf: disable


def suspicions_of_objects(sets: Sequence[ImageSet]) -> Iterator[Suspicion]:
    """Boxes and masks that look wrong, crowds left out."""
    for rule, (measure, describe) in RULES_OF_OBJECTS.items():
        found = Suspicion(rule)
        for data in sets:
            objects = data.objects
            assert objects is not None
            badness = np.where(objects.crowds, 0, measure(data, objects))
            worst = np.argsort(-badness, kind='stable')[:WORST].tolist()
            found.add(data.name, int((badness > 0).sum()), [
                case_of(rule, data, describe(data, objects, i), i) for i in worst if badness[i] > 0
            ])
        yield found
    yield same_boxes(sets)


def case_of(rule: str, data: ImageSet, text: str, *objects: int) -> Case:
    """Return what is odd about objects of an image, with its split and file, classes and ids."""
    found = data.objects
    assert found is not None
    names = dict.fromkeys(data.classes[found.labels[i]] for i in objects)
    ids = ' and '.join(str(found.ids[i]) for i in objects)
    image = int(found.images[objects[0]])
    message = (f'{data.name}: {data.file(image)}, {", ".join(names)}, '
               f'annotation{"s" if len(objects) > 1 else ""} {ids}: {text}')
    return Case(rule, message, (data.paths[image], ), id=ids, data=data, image=image,
                objects=objects)  # yapf: disable


def same_boxes(sets: Sequence[ImageSet]) -> Suspicion:
    """Two boxes of one class and nearly one place."""
    suspicion = Suspicion('double-box')
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
            text = f'intersection over union {iou:.3f}'
            cases.append(case_of('double-box', data, text, i, j))
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
