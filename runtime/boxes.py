"""Boxes of detectors as mmdet computes them: anchors, decoding, suppression.

Boxes are left, top, right and bottom in pixels, float32. Formulas: Faster R-CNN (arXiv 1506.01497),
section 3.1; feature pyramids (arXiv 1612.03144), equation 1.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .preprocessing import Size

MOST = np.float32(abs(np.log(16 / 1000)))  # of the logarithm of how boxes grow


@dataclass(frozen=True)
class Coder:
    """How deltas move and resize boxes.

    Attributes:
        means: Of deltas, which are normalised.
        stds: As ``means``.
        clip_border: Whether boxes end at the border of the image.
        centre_limit: By how many pixels centres move at most, or None.
    """
    means: tuple[float, ...]
    stds: tuple[float, ...]
    clip_border: bool
    centre_limit: float | None


def grid(size: Size, stride: Sequence[float]) -> np.ndarray:
    """The corner of each cell of a map, row by row, ``(H * W, 2)``.

    Args:
        size: ``H, W`` of the map.
        stride: Of the map along x and y, in pixels.
    """
    x = np.arange(size[1], dtype=np.float32) * np.float32(stride[0])
    y = np.arange(size[0], dtype=np.float32) * np.float32(stride[1])
    return np.stack(np.broadcast_arrays(x, y[:, None]), -1).reshape(-1, 2)


def anchors(size: Size, stride: Sequence[float], base: np.ndarray) -> np.ndarray:
    """The ``A`` boxes ``base`` at each cell of a map, ``(H * W * A, 4)``; see :func:`grid`."""
    corners = np.tile(grid(size, stride), 2)
    return (base + corners[:, None]).reshape(-1, 4)


def decode(boxes: np.ndarray, deltas: np.ndarray, coder: Coder, size: Size) -> np.ndarray:
    """Boxes moved and resized by deltas.

    Args:
        boxes: ``(n, 4)``.
        deltas: Of each box, for one or several classes, ``(n, K * 4)``.
        coder: Of the deltas.
        size: Height and width of the image that boxes are clipped to.

    Returns:
        ``(n, K, 4)``.
    """
    deltas = deltas.reshape(len(boxes), -1, 4)
    deltas = deltas * np.float32(coder.stds) + np.float32(coder.means)
    boxes = boxes[:, None]
    extent = boxes[..., 2:] - boxes[..., :2]
    shift, growth = extent * deltas[..., :2], deltas[..., 2:]
    limit = coder.centre_limit
    if limit is not None:
        shift = shift.clip(-limit, limit)
    growth = growth.clip(-MOST if limit is None else None, MOST)
    centre = (boxes[..., :2] + boxes[..., 2:]) * np.float32(0.5) + shift
    half = extent * np.exp(growth) * np.float32(0.5)
    found = np.concatenate([centre - half, centre + half], -1)
    return clip(found, size) if coder.clip_border else found


def clip(boxes: np.ndarray, size: Size) -> np.ndarray:
    """Boxes within an image of this height and width."""
    height, width = size
    return boxes.clip(0, np.float32([width, height, width, height]))


def inverse_of(scale: tuple[float, float]) -> np.ndarray:
    """The factors that undo a resizing by factors of width and height, ``(4,)``."""
    return np.array([1 / factor for factor in scale * 2], np.float32)


def large(boxes: np.ndarray, least: float) -> np.ndarray:
    """Which boxes are wider and higher than ``least``; all are if it is negative."""
    return (boxes[:, 2:] - boxes[:, :2] > least).all(1) | (least < 0)


def suppress(boxes: np.ndarray, scores: np.ndarray, groups: np.ndarray,
             threshold: float) -> np.ndarray:
    """Indices of the boxes that overlap no better one of their group, the best first.

    Groups are moved apart before, as mmcv does: it rounds the coordinates.

    Args:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        groups: The class or the level of each box, ``(n,)``, integers.
        threshold: Intersection over union above which the worse box goes.
    """
    if not len(boxes):
        return np.empty(0, np.int64)
    apart = boxes + (groups.astype(np.float32) * (boxes.max() + np.float32(1)))[:, None]
    order = np.argsort(-scores, kind='stable')
    kept = [np.empty(0, np.int64)]
    for group in np.unique(groups):
        members = order[groups[order] == group]
        kept.append(members[nms_keep(apart[members], threshold)])
    chosen = np.zeros(len(boxes), bool)
    chosen[np.concatenate(kept)] = True
    return order[chosen[order]]


def nms_keep(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Which boxes ``(n, 4)`` overlap no kept one before them."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    left, waiting = [], np.arange(len(boxes))
    while len(waiting):
        first, waiting = waiting[0], waiting[1:]
        left.append(first)
        low = np.maximum(boxes[first, :2], boxes[waiting, :2])
        high = np.minimum(boxes[first, 2:], boxes[waiting, 2:])
        common = (high - low).clip(0).prod(1)
        with np.errstate(invalid='ignore', divide='ignore'):  # of boxes without an area
            overlap = common / (areas[first] + areas[waiting] - common)
        waiting = waiting[~(overlap.astype(np.float64) > threshold)]
    return np.array(left, np.int64)


def levels_of(boxes: np.ndarray, finest_scale: float, num_levels: int) -> np.ndarray:
    """The level of a pyramid that each box ``(n, 4)`` is pooled from, ``(n,)``.

    Args:
        boxes: In pixels of the network's input.
        finest_scale: Boxes below twice this size are of level 0.
        num_levels: How many there are.
    """
    extent = boxes[:, 2:] - boxes[:, :2]
    scale = np.sqrt(extent[:, 0] * extent[:, 1])
    level = np.floor(np.log2(scale / np.float32(finest_scale) + np.float32(1e-6)))
    return level.clip(0, num_levels - 1).astype(np.int64)
