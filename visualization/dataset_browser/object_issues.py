"""Suspicious boxes and masks.

Shapes: ``N`` objects.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import shapely
from pycocotools import mask as coco_masks

from .dataset_reader import ImageSet
from .issues import MAX_EXAMPLES, Example, SuspectedIssue
from .objects import Mask, Objects, find_extent

TINY = 1.  # pixels
BEYOND = 1.  # pixels that a box may extend beyond its image
WHOLE = 0.99  # fraction of the image's sides
SAME = 0.9  # IoU of two boxes of a class
LONG = 20.  # ratio of the sides
OUT_OF_BOX = 2., 0.05  # pixels, and fraction of the box's side, that a mask may leave it
CHUNK = 20_000  # objects whose polygons are checked together
COMPARED = 128  # boxes that are compared with all others at a time


def compute_severities(data: ImageSet, objects: Objects) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each rule with the severity of all objects, ``(N,)``, positive for breaches."""
    size, boxes, sides = data.sizes[objects.images], objects.boxes, np.maximum(objects.sides, 0)
    shorter, longer = sides.min(axis=1, initial=np.inf), sides.max(axis=1, initial=0)
    shortest = objects.sides.min(axis=1, initial=np.inf)
    yield 'tiny-box', np.where(shortest <= TINY, 2 * TINY - shortest, 0)
    reach = np.maximum(-boxes[:, :2], boxes[:, 2:] - size).max(axis=1, initial=-np.inf)
    yield 'box-beyond', np.where((reach > BEYOND) & (size > 0).all(axis=1), reach, 0)
    covered = np.minimum(boxes[:, 2:], size) - np.maximum(boxes[:, :2], 0)
    fraction = (covered / np.maximum(size, 1)).min(axis=1, initial=np.inf)
    yield 'whole-image-box', np.where(fraction >= WHOLE, fraction, 0)
    ratio = longer / np.maximum(shorter, TINY)
    yield 'long-box', np.where((ratio > LONG) & (shorter > TINY), ratio, 0)
    severity = np.zeros(len(objects))
    for index, (mask, box) in enumerate(zip(objects.masks, boxes, strict=True)):
        extent = find_extent(mask)
        if extent is not None:
            leaves = max(0, (box[:2] - extent[:2]).max(), (extent[2:] - box[2:]).max())
            allowed = max(OUT_OF_BOX[0], OUT_OF_BOX[1] * (box[2:] - box[:2]).max())
            severity[index] = leaves if leaves > allowed else 0
    yield 'mask-beyond-box', severity
    severity = np.zeros(len(objects))
    crossing = find_crossing(objects.masks)
    severity[crossing] = np.maximum(objects.areas[crossing], 1)
    yield 'cross-polygon', severity


def find_crossing(masks: Sequence[Mask]) -> list[int]:
    """Return the indices of masks with a polygon whose outline crosses itself."""
    crossing = []
    for start in range(0, len(masks), CHUNK):
        polygons = [(index, polygon) for index, mask in enumerate(masks[start:start + CHUNK], start)
                    if isinstance(mask, list) for polygon in mask]  # yapf: disable
        if not polygons:
            continue
        indices = np.repeat(np.arange(len(polygons)), [len(polygon) for _, polygon in polygons])
        points = np.concatenate([polygon for _, polygon in polygons]).astype(np.float64)
        shapes = shapely.polygons(shapely.linearrings(points, indices=indices))
        for place in np.flatnonzero(~shapely.is_valid(shapes)):
            # Other reasons are polygons that only touch themselves.
            if shapely.is_valid_reason(shapes[place]).startswith('Self-intersection'):
                crossing.append(polygons[place][0])
    return crossing


def describe_object(rule: str, data: ImageSet, objects: Objects, index: int) -> str:
    """Return the box of an object, with its position and image for rules about them."""
    if rule not in ('box-beyond', 'whole-image-box'):
        width, height = objects.sides[index]
        return f'box of {width:g} x {height:g} pixels'
    box = ', '.join(f'{side:g}' for side in objects.boxes[index].round(1))
    width, height = data.sizes[objects.images[index]]
    return f'box from left, top to right, bottom: {box}; image {width} x {height}'


def find_object_issues(sets: Sequence[ImageSet]) -> Iterator[SuspectedIssue]:
    """Yield suspicious boxes and masks, except for crowds and stuff."""
    issues: dict[str, SuspectedIssue] = {}
    for data in sets:
        objects = data.objects
        assert objects is not None
        for rule, severity in compute_severities(data, objects):
            is_thing = objects.labels < (data.num_things or len(data.classes))
            severity = np.where(is_thing & ~objects.crowds, severity, 0)
            worst = np.argsort(-severity, kind='stable')[:MAX_EXAMPLES].tolist()
            examples = [build_example(rule, data, describe_object(rule, data, objects, i), i)
                        for i in worst if severity[i] > 0]  # yapf: disable
            issue = issues.setdefault(rule, SuspectedIssue(rule))
            issue.add(data.name, int((severity > 0).sum()), examples)
    yield from issues.values()
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
