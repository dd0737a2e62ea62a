"""Boxes and masks that look wrong.

Shapes: ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import shapely
from pycocotools import mask as coco_masks

from .dataset_reader import ImageSet
from .issues import MAX_CASES, Case, Issue
from .objects import Objects, find_extent

TINY = 1.  # pixels
BEYOND = 1.  # pixels that a box may extend beyond its image
WHOLE = 0.99  # fraction of the image's sides
SAME = 0.9  # IoU of two boxes of a class
LONG = 20.  # ratio of the sides
OUT_OF_BOX = 2., 0.05  # pixels, and fraction of the box's side, that a mask may leave it
CHUNK = 20_000  # objects whose polygons are checked together
COMPARED = 128  # boxes that are compared with all others at a time


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
    """Return more where the shorter side of a box is shorter."""
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
    rating = np.zeros(len(objects))
    for index, (mask, box) in enumerate(zip(objects.masks, objects.boxes, strict=True)):
        extent = find_extent(mask)
        if extent is not None:
            reach = max(0, (box[:2] - extent[:2]).max(), (extent[2:] - box[2:]).max())
            allowed = max(OUT_OF_BOX[0], OUT_OF_BOX[1] * (box[2:] - box[:2]).max())
            rating[index] = reach if reach > allowed else 0
    return rating


def rate_crossing(data: ImageSet, objects: Objects) -> np.ndarray:
    """Return the area of objects with a polygon whose outline crosses itself."""
    rating = np.zeros(len(objects))
    for start in range(0, len(objects), CHUNK):
        polygons = [(index, polygon)
                    for index, mask in enumerate(objects.masks[start:start + CHUNK], start)
                    if isinstance(mask, list) for polygon in mask]  # yapf: disable
        owners = np.array([index for index, _ in polygons], dtype=np.int64)
        owners = owners[find_crossing([polygon for _, polygon in polygons])]
        rating[owners] = np.maximum(objects.areas[owners], 1)
    return rating


def find_crossing(rings: Sequence[np.ndarray]) -> np.ndarray:
    """Return the indices of polygons ``(P, 2)`` that cross, not only touch, themselves."""
    if not rings:
        return np.zeros(0, np.int64)
    indices = np.repeat(np.arange(len(rings)), [len(ring) for ring in rings])
    points = np.concatenate(rings).astype(np.float64)
    shapes = shapely.polygons(shapely.linearrings(points, indices=indices))
    invalid = np.flatnonzero(~shapely.is_valid(shapes))
    reasons = shapely.is_valid_reason(shapes[invalid])
    return invalid[[reason.startswith('Self-intersection') for reason in reasons]]


#: rule -> how odd each object is, ``(N,)``, 0 or less if it is not; and what is odd about it
OBJECT_RULES: dict[str, tuple[Callable[[ImageSet, Objects], np.ndarray],
                              Callable[[ImageSet, Objects, int], str]]] = {
    'tiny-box': (rate_tiny, describe_sides),
    'box-beyond': (rate_beyond, describe_box),
    'whole-image-box': (rate_whole, describe_box),
    'long-box': (rate_long, describe_sides),
    'mask-beyond-box': (rate_mask_beyond, describe_sides),
    'cross-polygon': (rate_crossing, describe_sides),
}  # yapf: disable


def find_object_issues(sets: Sequence[ImageSet]) -> Iterator[Issue]:
    """Yield boxes and masks that look wrong, without crowds."""
    for rule, (rate, describe) in OBJECT_RULES.items():
        issue = Issue(rule)
        for data in sets:
            objects = data.objects
            assert objects is not None
            rating = np.where(objects.crowds, 0, rate(data, objects))
            worst = np.argsort(-rating, kind='stable')[:MAX_CASES].tolist()
            issue.add(data.name, int((rating > 0).sum()), [
                build_case(rule, data, describe(data, objects, i), i) for i in worst
                if rating[i] > 0
            ])  # yapf: disable
        yield issue
    yield find_double_boxes(sets)


def build_case(rule: str, data: ImageSet, text: str, *objects: int) -> Case:
    """Return a case of objects in an image, with its split and file, classes and IDs."""
    columns = data.objects
    assert columns is not None
    names = dict.fromkeys(data.classes[columns.labels[i]] for i in objects)
    ids = ' and '.join(str(columns.ids[i]) for i in objects)
    image = int(columns.images[objects[0]])
    message = (f'{data.name}: {data.get_file_name(image)}, {", ".join(names)}, '
               f'annotation{"s" if len(objects) > 1 else ""} {ids}: {text}')
    return Case(rule, message, (data.paths[image], ), id=ids, data=data, image=image,
                objects=objects)  # yapf: disable


def find_double_boxes(sets: Sequence[ImageSet]) -> Issue:
    """Return pairs of boxes of one class at nearly one place."""
    issue = Issue('double-box')
    for data in sets:
        assert data.objects is not None
        count, worst = 0, np.zeros((0, 3))
        for pairs in find_box_pairs(data.objects):
            count += len(pairs)
            pairs = np.concatenate([worst, pairs])
            worst = pairs[np.argsort(-pairs[:, 2], kind='stable')[:MAX_CASES]]
        cases = []
        for *pair, iou in worst.tolist():
            text = f'intersection over union {iou:.3f}'
            cases.append(build_case('double-box', data, text, *sorted(map(int, pair))))
        issue.add(data.name, count, cases)
    return issue


def find_box_pairs(objects: Objects) -> Iterator[np.ndarray]:
    """Yield objects of one image and class with nearly the same box, and their IoU, ``(P, 3)``."""
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
