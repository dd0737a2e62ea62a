"""Prediction of large images in overlapping tiles, whose results are merged.

Each pixel of a label map has the class from the tile in which it is farther from the edge.
Instances of several tiles are merged if they agree in the overlap of the tiles, even if each tile
shows only a small part. SAHI (Akyon et al. 2022, arXiv 2202.06934) also slices images and predicts
the full image. It merges by IoU of full boxes, which is low for parts of an object.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import shapely

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, encode_crop, make_json_rle

from .results import Instances, LabelMap, Result

MIN_IOU = 0.5  # within the overlap of two views, from which two instances are the same
MARGIN = 3  # pixels; an instance this close to the edge of a view can be cut off


class View(NamedTuple):
    """Part of an image in pixels; ``bottom`` and ``right`` are exclusive."""
    top: int
    left: int
    bottom: int
    right: int

    @property
    def slices(self) -> tuple[slice, slice]:
        """Slices of rows and columns."""
        return slice(self.top, self.bottom), slice(self.left, self.right)

    @property
    def area(self) -> int:
        """Area in pixels; 0 if an intersection is empty."""
        return max(0, self.bottom - self.top) * max(0, self.right - self.left)

    def intersect(self, other: View) -> View:
        """Return the intersection; empty if ``bottom <= top`` or ``right <= left``."""
        return View(*map(max, self[:2], other[:2]), *map(min, self[2:], other[2:]))

    def shift(self, top: int, left: int) -> View:
        """Return the view, moved down by ``top`` and right by ``left``."""
        return View(self.top + top, self.left + left, self.bottom + top, self.right + left)


def compute_spans(length: int, tile: int, overlap: float) -> list[tuple[int, int]]:
    """Return start and end of evenly spread tiles along one side of an image."""
    if length <= tile:
        return [(0, length)]
    shared = math.ceil(tile * overlap)
    num_tiles = math.ceil((length - shared) / (tile - shared))
    starts = [round(i * (length - tile) / (num_tiles - 1)) for i in range(num_tiles)]
    return [(start, start + tile) for start in starts]


def compute_tiles(size: tuple[int, int], tile: int, overlap: float) -> list[View]:
    """Return tiles that cover an image of height and width ``size``, row by row.

    Each tile overlaps the next one by at least the fraction ``overlap`` of its size.
    """
    if tile < 1 or not 0 <= overlap < 1 or math.ceil(tile * overlap) >= tile:
        raise UserError('the tile size must be at least 1 and the overlap at least 0 and below 1, '
                        f'got {tile} and {overlap}')
    rows, columns = (compute_spans(length, tile, overlap) for length in size)
    return [View(top, left, bottom, right) for top, bottom in rows for left, right in columns]


def merge_results(results: Sequence[Result], views: Sequence[View], size: tuple[int,
                                                                                int]) -> Result:
    """Merge the results of all views of an image."""
    first = results[0]
    if isinstance(first, LabelMap):
        maps = [result.labels for result in results if isinstance(result, LabelMap)]
        return first.replace(size=size, labels=merge_label_maps(maps, views, size))
    return merge_instances([each for each in results if isinstance(each, Instances)], views, size)


def merge_label_maps(maps: Sequence[np.ndarray], views: Sequence[View],
                     size: tuple[int, int]) -> np.ndarray:
    """Merge label maps ``(h, w)``; neighbors meet in the middle of their overlap."""
    rows = cut_overlaps(sorted({(view.top, view.bottom) for view in views}))
    columns = cut_overlaps(sorted({(view.left, view.right) for view in views}))
    merged = np.empty(size, dtype=maps[0].dtype)
    for labels, view in zip(maps, views, strict=True):
        top, bottom = rows[view.top, view.bottom]
        left, right = columns[view.left, view.right]
        part = View(top, left, bottom, right)
        merged[part.slices] = labels[part.shift(-view.top, -view.left).slices]
    return merged


def cut_overlaps(spans: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the part of each span that remains if neighbors meet in the middle of overlaps."""
    middles = [(end + start) // 2
               for (_, end), (start, _) in zip(spans, spans[1:], strict=False)]  # yapf: disable
    edges = [spans[0][0], *middles, spans[-1][1]]
    return {span: (edges[i], edges[i + 1]) for i, span in enumerate(spans)}


@dataclass(frozen=True, eq=False)
class Part:
    """An instance as predicted in one view, in pixels of the full image."""
    view: int  # index
    label: int
    score: float
    box: tuple[float, float, float, float]  # left, top, right, bottom
    place: View  # bounding box of the mask in whole pixels
    mask: np.ndarray | None  # pixels of the place, bool
    is_cut: bool  # True if the edge of the view can cut off the instance
    is_tile: bool  # False for the full image

    def crop_mask(self, view: View) -> np.ndarray:
        """Return the mask within a view."""
        shared = self.place.intersect(view)
        if self.mask is None or not shared.area:
            return np.zeros((0, 0), dtype=bool)
        return self.mask[shared.shift(-self.place.top, -self.place.left).slices]

    def compute_area(self, view: View) -> int:
        """Return the area of the mask within a view; without a mask, of the box."""
        if self.mask is None:
            return self.place.intersect(view).area
        return int(np.count_nonzero(self.crop_mask(view)))


def iter_parts(instances: Instances, index: int, view: View, size: tuple[int,
                                                                         int]) -> Iterator[Part]:
    """Yield the instances of a view."""
    height, width = instances.size
    is_tile = (view.bottom - view.top, view.right - view.left) != tuple(size)
    for i, (left, top, right, bottom) in enumerate(instances.boxes.astype(float)):
        is_cut = ((left <= MARGIN and view.left > 0) or (top <= MARGIN and view.top > 0)
                  or (right >= width - MARGIN and view.right < size[1])
                  or (bottom >= height - MARGIN and view.bottom < size[0]))
        place, mask = View(
            max(0, math.floor(top)), max(0, math.floor(left)), min(height, math.ceil(bottom)),
            min(width, math.ceil(right))), None
        if instances.masks is not None:
            mask = decode_rle(instances.masks[i])
            ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            place = View(ys[0], xs[0], ys[-1] + 1, xs[-1] + 1) if len(ys) else View(0, 0, 0, 0)
            mask = mask[place.slices]
        box = left + view.left, top + view.top, right + view.left, bottom + view.top
        yield Part(index, int(instances.labels[i]), float(instances.scores[i]), box,
                   place.shift(view.top, view.left), mask, is_cut, is_tile)


def find_overlapping_pairs(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return indices of parts with the same label, in different views, whose places overlap."""
    top, left, bottom, right = np.array([part.place for part in parts]).reshape(-1, 4).T
    labels = np.array([part.label for part in parts])
    views = np.array([part.view for part in parts])
    boxes = shapely.box(left, top, right, bottom)
    i, j = shapely.STRtree(boxes).query(boxes)  # also pairs that only touch
    is_pair = ((i < j) & (labels[i] == labels[j]) & (views[i] != views[j])
               & (top[i] < bottom[j]) & (top[j] < bottom[i])
               & (left[i] < right[j]) & (left[j] < right[i]))
    return list(zip(i[is_pair].tolist(), j[is_pair].tolist(), strict=True))


def compute_iou(one: Part, other: Part, views: Sequence[View]) -> float:
    """Return the intersection over union of two instances within the overlap of their views."""
    shared = views[one.view].intersect(views[other.view])
    common = one.place.intersect(other.place).intersect(shared)
    if not common.area:
        return 0.
    if one.mask is None:
        intersection = common.area
    else:
        intersection = int(np.count_nonzero(one.crop_mask(common) & other.crop_mask(common)))
    union = one.compute_area(shared) + other.compute_area(shared) - intersection
    return intersection / union if union else 0.


def group_parts(parts: Sequence[Part], views: Sequence[View]) -> list[list[Part]]:
    """Group parts of the same instance by descending IoU, with at most one part per view."""
    pairs = [(iou, i, j) for i, j in find_overlapping_pairs(parts)
             if (iou := compute_iou(parts[i], parts[j], views)) >= MIN_IOU]
    group_of = {i: [i] for i in range(len(parts))}
    for _, i, j in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
        one, other = group_of[i], group_of[j]
        if one is other or {parts[k].view for k in one} & {parts[k].view for k in other}:
            continue
        one.extend(other)
        group_of.update(dict.fromkeys(other, one))
    unique = {id(group): group for group in group_of.values()}
    return [[parts[i] for i in group] for group in unique.values()]


def merge_instances(results: Sequence[Instances], views: Sequence[View],
                    size: tuple[int, int]) -> Instances:
    """Merge the instances of all views, by descending score.

    An instance that some views show completely is taken from a tile, or else from the full image.
    Other instances are the union of their parts. The score is the highest of all parts.
    """
    parts = [
        part for index, (instances, view) in enumerate(zip(results, views, strict=True))
        for part in iter_parts(instances, index, view, size)
    ]
    merged = [merge_parts(group, size) for group in group_parts(parts, views)]
    merged.sort(key=lambda instance: -instance[0])
    first = results[0]
    return first.replace(
        size=size,
        scores=np.array([instance[0] for instance in merged], dtype=np.float32),
        labels=np.array([instance[1] for instance in merged], dtype=np.int64),
        boxes=np.array([instance[2] for instance in merged], dtype=np.float32).reshape(-1, 4),
        masks=None if first.masks is None else tuple(instance[3] for instance in merged))


def merge_parts(group: Sequence[Part],
                size: tuple[int, int]) -> tuple[float, int, np.ndarray, dict[str, Any] | None]:
    """Return score, label, box and RLE of an instance that several views show."""
    score = max(part.score for part in group)
    complete = [part for part in group if not part.is_cut]
    if complete:
        group = [max(complete, key=lambda part: (part.is_tile, part.score))]
    boxes = np.array([part.box for part in group])
    box = np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])
    if group[0].mask is None:
        return score, group[0].label, box, None
    visible = [part for part in group if part.place.area] or [group[0]]
    corners = np.array([part.place for part in visible])
    top, left = corners[:, :2].min(0)
    bottom, right = corners[:, 2:].max(0)
    mask = np.zeros((bottom - top, right - left), dtype=bool)
    for part in visible:
        mask[part.place.shift(-top, -left).slices] |= part.mask
    return score, group[0].label, box, make_json_rle(encode_crop(mask, int(top), int(left), size))
