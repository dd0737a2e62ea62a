"""Suspicious boxes and masks.

Shapes: ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import shapely
from pycocotools import mask as coco_masks

from .dataset_reader import ImageSet
from .issues import MAX_EXAMPLES, Example, SuspectedIssue
from .objects import Objects, find_extent

TINY = 1.  # pixels
BEYOND = 1.  # pixels that a box may extend beyond its image
WHOLE = 0.99  # fraction of the image's sides
SAME = 0.9  # IoU of two boxes of a class
LONG = 20.  # ratio of the sides
OUT_OF_BOX = 2., 0.05  # pixels, and fraction of the box's side, that a mask may leave it
CHUNK = 20_000  # objects whose polygons are checked together
COMPARED = 128  # boxes that are compared with all others at a time


class ObjectRule(NamedTuple):
    """Rule for single objects."""
    # Returns a severity for each object, (N,), which is positive for breaches.
    compute_severity: Callable[[ImageSet, Objects], np.ndarray]
    describe: Callable[[ImageSet, Objects, int], str]  # returns a description of an object


def describe_sides(data: ImageSet, objects: Objects, index: int) -> str:
    """Return the sides of a box."""
    width, height = objects.sides[index]
    return f'box of {width:g} x {height:g} pixels'


def describe_box(data: ImageSet, objects: Objects, index: int) -> str:
    """Return a box and the size of its image."""
    box = ', '.join(f'{side:g}' for side in objects.boxes[index].round(1))
    width, height = data.sizes[objects.images[index]]
    return f'box from left, top to right, bottom: {box}; image {width} x {height}'


def rate_tiny(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return a severity that grows as the shorter side of a box shrinks."""
    side = objects.sides.min(axis=1, initial=np.inf)
    return np.where(side <= TINY, 2 * TINY - side, 0)


def rate_beyond(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the pixels that a box extends beyond its image."""
    size = data.sizes[objects.images]
    over = np.maximum(-objects.boxes[:, :2], objects.boxes[:, 2:] - size)
    reach = over.max(axis=1, initial=-np.inf)
    return np.where((reach > BEYOND) & (size > 0).all(axis=1), reach, 0)


def rate_whole(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the fraction of the image that a box covers, if it is all of it."""
    size = data.sizes[objects.images]
    low, high = np.maximum(objects.boxes[:, :2], 0), np.minimum(objects.boxes[:, 2:], size)
    fraction = ((high - low) / np.maximum(size, 1)).min(axis=1, initial=np.inf)
    return np.where(fraction >= WHOLE, fraction, 0)


def rate_long(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the ratio of the longer to the shorter side of a box."""
    sides = np.maximum(objects.sides, 0)
    shorter = sides.min(axis=1, initial=np.inf)
    ratio = sides.max(axis=1, initial=0) / np.maximum(shorter, TINY)
    return np.where((ratio > LONG) & (shorter > TINY), ratio, 0)


def rate_mask_beyond(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the pixels that a mask extends beyond its box."""
    severity = np.zeros(len(objects))
    for index, (mask, box) in enumerate(zip(objects.masks, objects.boxes, strict=True)):
        extent = find_extent(mask)
        if extent is not None:
            reach = max(0, (box[:2] - extent[:2]).max(), (extent[2:] - box[2:]).max())
            allowed = max(OUT_OF_BOX[0], OUT_OF_BOX[1] * (box[2:] - box[:2]).max())
            severity[index] = reach if reach > allowed else 0
    return severity


def rate_crossing(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the area of objects with a polygon whose outline crosses itself."""
    severity = np.zeros(len(objects))
    for start in range(0, len(objects), CHUNK):
        polygons = [(index, polygon)
                    for index, mask in enumerate(objects.masks[start:start + CHUNK], start)
                    if isinstance(mask, list) for polygon in mask]  # yapf: disable
        if not polygons:
            continue
        indices = np.repeat(np.arange(len(polygons)), [len(polygon) for _, polygon in polygons])
        points = np.concatenate([polygon for _, polygon in polygons]).astype(np.float64)
        shapes = shapely.polygons(shapely.linearrings(points, indices=indices))
        for place in np.flatnonzero(~shapely.is_valid(shapes)):
            # Other reasons are polygons that only touch themselves.
            if shapely.is_valid_reason(shapes[place]).startswith('Self-intersection'):
                owner = polygons[place][0]
                severity[owner] = max(objects.areas[owner], 1)
    return severity


OBJECT_RULES = {
    'tiny-box': ObjectRule(rate_tiny, describe_sides),
    'box-beyond': ObjectRule(rate_beyond, describe_box),
    'whole-image-box': ObjectRule(rate_whole, describe_box),
    'long-box': ObjectRule(rate_long, describe_sides),
    'mask-beyond-box': ObjectRule(rate_mask_beyond, describe_sides),
    'cross-polygon': ObjectRule(rate_crossing, describe_sides),
}


def find_object_issues(sets: Sequence[ImageSet]) -> Iterator[SuspectedIssue]:
    """Yield suspicious boxes and masks, except for crowds."""
    for name, rule in OBJECT_RULES.items():
        issue = SuspectedIssue(name)
        for data in sets:
            objects = data.objects
            assert objects is not None
            severity = np.where(objects.crowds, 0, rule.compute_severity(data, objects))
            worst = np.argsort(-severity, kind='stable')[:MAX_EXAMPLES].tolist()
            issue.add(data.name, int((severity > 0).sum()), [
                build_example(name, data, rule.describe(data, objects, i), i) for i in worst
                if severity[i] > 0
            ])  # yapf: disable
        yield issue
    yield find_double_boxes(sets)


def build_example(rule: str, data: ImageSet, text: str, *objects: int) -> Example:
    """Return an example with objects of one image: split, file, classes and IDs."""
    columns = data.objects
    assert columns is not None
    names = dict.fromkeys(data.classes[columns.labels[i]] for i in objects)
    ids = ' and '.join(str(columns.ids[i]) for i in objects)
    image = int(columns.images[objects[0]])
    message = (f'{data.name}: {data.get_file_name(image)}, {", ".join(names)}, '
               f'annotation{"s" if len(objects) > 1 else ""} {ids}: {text}')
    return Example(rule, message, (data.paths[image], ), id=ids, data=data, image=image,
                   objects=objects)  # yapf: disable


def find_double_boxes(sets: Sequence[ImageSet]) -> SuspectedIssue:
    """Return pairs of nearly equal boxes of one class."""
    issue = SuspectedIssue('double-box')
    for data in sets:
        assert data.objects is not None
        count, worst = 0, np.zeros((0, 3))
        for pairs in find_box_pairs(data.objects):
            count += len(pairs)
            pairs = np.concatenate([worst, pairs])
            worst = pairs[np.argsort(-pairs[:, 2], kind='stable')[:MAX_EXAMPLES]]
        issue.add(data.name, count, [
            build_example('double-box', data, f'intersection over union {iou:.3f}',
                          *sorted(map(int, pair))) for *pair, iou in worst.tolist()
        ])  # yapf: disable
    return issue


def find_box_pairs(objects: Objects) -> Iterator[np.ndarray]:
    """Yield pairs of objects of one image and class with nearly equal boxes, and IoU, ``(P, 3)``.
    """
    chosen, sides = objects.singles, objects.sides
    keys = np.stack([objects.images[chosen], objects.labels[chosen]])
    order = np.lexsort(keys[::-1])
    changes = np.flatnonzero(np.any(np.diff(keys[:, order]), axis=0)) + 1
    for group in np.split(chosen[order], changes):
        boxes = np.concatenate([objects.boxes[group, :2], sides[group]], axis=1)
        for start in range(0, len(group) - 1, COMPARED):
            some, others = group[start:start + COMPARED], group[start:]
            ious = coco_masks.iou(boxes[start:start + COMPARED], boxes[start:], [0] * len(others))
            first, second = np.nonzero(np.triu(ious, 1) > SAME)
            if len(first):
                yield np.stack([some[first], others[second], ious[first, second]], axis=1)
