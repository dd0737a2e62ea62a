"""Images that are too large for one pass: tiles that overlap, and one answer made of theirs.

A pixel of a label map is that of the tile in which it lies farther from the border. Instances of
several tiles are one if they agree where the tiles overlap, however little each tile shows of it.
Slicing an image for a detector, and looking at it as a whole too, is known from SAHI (Akyon et al.
2022, arXiv 2202.06934). It merges by overlap of whole boxes, which parts of an object hardly have.
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

SAME = 0.5  # intersection over union, within what two views share, from which two instances are one
MARGIN = 3  # pixels: an instance as near as that to a view's border may be cut


class View(NamedTuple):
    """A part of an image, in its pixels; ``bottom`` and ``right`` lie behind the last."""
    top: int
    left: int
    bottom: int
    right: int

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def intersection(self, other: View) -> View:
        """What two share; empty if ``bottom <= top`` or ``right <= left``."""
        return View(*map(max, self[:2], other[:2]), *map(min, self[2:], other[2:]))

    @property
    def area(self) -> int:
        return max(0, self.bottom - self.top) * max(0, self.right - self.left)


def spans(length: int, tile: int, overlap: float) -> list[tuple[int, int]]:
    """Where tiles begin and end along a side, spread evenly; one if they are as long as the side.

    Args:
        length: Of the side.
        tile: Length of a tile.
        overlap: Share of a tile that it has in common with the next, at least.
    """
    if length <= tile:
        return [(0, length)]
    shared = math.ceil(tile * overlap)
    number = math.ceil((length - shared) / (tile - shared))
    starts = [round(i * (length - tile) / (number - 1)) for i in range(number)]
    return [(start, start + tile) for start in starts]


def tiles_of(size: tuple[int, int], tile: int, overlap: float) -> list[View]:
    """Tiles that cover an image of height and width ``size``, row by row.

    Raises:
        ValueError: If ``tile`` is no positive length, or ``overlap`` not from 0 to below 1.
    """
    if tile < 1 or not 0 <= overlap < 1 or math.ceil(tile * overlap) >= tile:
        raise UserError(f'a tile has at least one pixel and overlaps the next by 0 to under 1 of '
                        f'it, got {tile} and {overlap}')
    rows, columns = (spans(length, tile, overlap) for length in size)
    return [View(top, left, bottom, right) for top, bottom in rows for left, right in columns]


def merge(results: Sequence[Result], views: Sequence[View], size: tuple[int, int]) -> Result:
    """One answer for an image from those for its views.

    Args:
        results: Of the views.
        views: Tiles as :func:`tiles_of` has them; for instances, also the whole image.
        size: Height and width of the image.
    """
    first = results[0]
    if isinstance(first, LabelMap):
        labels = merged_labels([r.labels for r in results if isinstance(r, LabelMap)], views, size)
        return first.changed(size=size, labels=labels)
    return merged_instances([r for r in results if isinstance(r, Instances)], views, size)


def merged_labels(maps: Sequence[np.ndarray], views: Sequence[View],
                  size: tuple[int, int]) -> np.ndarray:
    """A label map of the tiles': neighbours meet in the middle of what they share.

    Args:
        maps: ``(h, w)`` each.
        views: Where they lie.
        size: Height and width of the whole.
    """
    rows = borders(sorted({(view.top, view.bottom) for view in views}))
    columns = borders(sorted({(view.left, view.right) for view in views}))
    whole = np.empty(size, dtype=maps[0].dtype)
    for labels, view in zip(maps, views, strict=True):
        top, bottom = rows[view.top, view.bottom]
        left, right = columns[view.left, view.right]
        whole[top:bottom, left:right] = labels[top - view.top:bottom - view.top,
                                               left - view.left:right - view.left]
    return whole


def borders(ranges: Sequence[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """What each of some ranges that overlap covers, if neighbours meet in the middle."""
    inner = [(end + start) // 2
             for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False)]  # yapf: disable
    cuts = [ranges[0][0], *inner, ranges[-1][1]]
    return {span: (cuts[i], cuts[i + 1]) for i, span in enumerate(ranges)}


@dataclass(frozen=True, eq=False)
class Part:
    """An instance as one view shows it, in pixels of the whole image.

    Attributes:
        view: The number of the view.
        box: Left, top, right, bottom.
        place: Where ``mask`` lies.
        mask: Of the pixels of ``place``, bool; without masks, None: then the box is the mask.
        cut: Whether the view may end within the instance.
        fine: Whether the view is a tile, and not the whole image.
    """
    view: int
    label: int
    score: float
    box: tuple[float, float, float, float]
    place: View
    mask: np.ndarray | None
    cut: bool
    fine: bool

    def within(self, view: View) -> np.ndarray | int:
        """The mask within a view; without one, the area of the box."""
        shared = self.place.intersection(view)
        if self.mask is None:
            return shared.area
        if not shared.area:
            return np.zeros((0, 0), dtype=bool)
        return self.mask[shared.top - self.place.top:shared.bottom - self.place.top,
                         shared.left - self.place.left:shared.right - self.place.left]


def parts_of(found: Instances, number: int, view: View, size: tuple[int, int]) -> Iterator[Part]:
    """The instances of a view."""
    fine = (view.bottom - view.top, view.right - view.left) != tuple(size)
    for index, box in enumerate(found.boxes.astype(float)):
        left, top, right, bottom = box
        cut = ((left <= MARGIN and view.left > 0) or (top <= MARGIN and view.top > 0)
               or (right >= found.size[1] - MARGIN and view.right < size[1])
               or (bottom >= found.size[0] - MARGIN and view.bottom < size[0]))
        place = View(
            max(0, math.floor(top)), max(0, math.floor(left)), min(found.size[0],
                                                                   math.ceil(bottom)),
            min(found.size[1], math.ceil(right)))
        mask = None
        if found.masks is not None:
            mask = decode_rle(found.masks[index])
            ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            place = View(ys[0], xs[0], ys[-1] + 1, xs[-1] + 1) if len(ys) else View(0, 0, 0, 0)
            mask = mask[place.slices]
        moved = View(place.top + view.top, place.left + view.left, place.bottom + view.top,
                     place.right + view.left)
        yield Part(number, int(found.labels[index]), float(found.scores[index]),
                   (left + view.left, top + view.top, right + view.left, bottom + view.top), moved,
                   mask, cut, fine)


def candidates(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Return pairs of parts of one label and of two views whose places overlap."""
    top, left, bottom, right = np.array([part.place for part in parts]).reshape(-1, 4).T
    labels = np.array([part.label for part in parts])
    views = np.array([part.view for part in parts])
    boxes = shapely.box(left, top, right, bottom)
    one, other = shapely.STRtree(boxes).query(boxes)  # also those that only touch
    chosen = ((one < other) & (labels[one] == labels[other]) & (views[one] != views[other])
              & (top[one] < bottom[other]) & (top[other] < bottom[one])
              & (left[one] < right[other]) & (left[other] < right[one]))
    return list(zip(one[chosen].tolist(), other[chosen].tolist(), strict=True))


def agreement(one: Part, other: Part, views: Sequence[View]) -> float:
    """Intersection over union of two instances within what their views share."""
    shared = views[one.view].intersection(views[other.view])
    both = one.place.intersection(other.place).intersection(shared)
    if not both.area:
        return 0.
    common = one.within(both)
    if isinstance(common, np.ndarray):
        intersection = int(np.count_nonzero(common & other.within(both)))
    else:
        intersection = common
    union = area(one.within(shared)) + area(other.within(shared)) - intersection
    return intersection / union if union else 0.


def area(found: np.ndarray | int) -> int:
    return int(np.count_nonzero(found)) if isinstance(found, np.ndarray) else found


def groups(parts: Sequence[Part], views: Sequence[View]) -> list[list[Part]]:
    """Parts that are one instance: those that agree most first, one of each view at most."""
    pairs = [(found, i, j) for i, j in candidates(parts)
             if (found := agreement(parts[i], parts[j], views)) >= SAME]
    group_of = {i: [i] for i in range(len(parts))}
    for _, i, j in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
        one, other = group_of[i], group_of[j]
        if one is other or {parts[k].view for k in one} & {parts[k].view for k in other}:
            continue
        one.extend(other)
        group_of.update(dict.fromkeys(other, one))
    unique = {id(group): group for group in group_of.values()}
    return [[parts[i] for i in group] for group in unique.values()]


def merged_instances(results: Sequence[Instances], views: Sequence[View],
                     size: tuple[int, int]) -> Instances:
    """The instances of an image from those of its views, the most certain first.

    One that a view shows in whole has the shape that the finest such view shows. Else it is the
    union of its parts. Its score is the highest of theirs.

    Args:
        results: Of the views.
        views: Where they lie.
        size: Height and width of the image.
    """
    parts = [
        part for number, (found, view) in enumerate(zip(results, views, strict=True))
        for part in parts_of(found, number, view, size)
    ]
    merged = sorted((united(group, size) for group in groups(parts, views)), key=lambda m: -m[0])
    first = results[0]
    return first.changed(
        size=size,
        scores=np.array([m[0] for m in merged], dtype=np.float32),
        labels=np.array([m[1] for m in merged], dtype=np.int64),
        boxes=np.array([m[2] for m in merged], dtype=np.float32).reshape(-1, 4),
        masks=None if first.masks is None else tuple(m[3] for m in merged))


def united(group: Sequence[Part], size: tuple[int, int]) -> tuple[float, int, np.ndarray, Any]:
    """Score, label, box and mask of an instance that several views show."""
    score = max(part.score for part in group)
    whole = [part for part in group if not part.cut]
    if whole:
        group = [max(whole, key=lambda part: (part.fine, part.score))]
    boxes = np.array([part.box for part in group])
    box = np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])
    if group[0].mask is None:
        return score, group[0].label, box, None
    shown = [part for part in group if part.place.area] or [group[0]]
    corners = np.array([part.place for part in shown])
    top, left = corners[:, :2].min(0)
    bottom, right = corners[:, 2:].max(0)
    mask = np.zeros((bottom - top, right - left), dtype=bool)
    for part in shown:
        y, x = part.place.top - top, part.place.left - left
        mask[y:y + part.place.bottom - part.place.top,
             x:x + part.place.right - part.place.left] |= part.mask
    return score, group[0].label, box, make_json_rle(encode_crop(mask, int(top), int(left), size))
