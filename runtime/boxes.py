"""Boxes of detectors as mmdet computes them: anchors, decoding, suppression.

Boxes are left, top, right and bottom in pixels, float32. Formulas: Faster R-CNN (arXiv 1506.01497),
section 3.1; feature pyramids (arXiv 1612.03144), equation 1.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .preprocessing import Size

MAX_LOG_GROWTH = np.float32(abs(np.log(16 / 1000)))


@dataclass(frozen=True)
class Coder:
    """Parameters of box deltas."""
    means: tuple[float, ...]
    stds: tuple[float, ...]
    clip_border: bool
    centre_limit: float | None  # largest shift of box centers in pixels


def build_grid(size: Size, stride: Sequence[float]) -> np.ndarray:
    """Return the corner of each cell of a map, row by row, ``(H * W, 2)``, in pixels."""
    x = np.arange(size[1], dtype=np.float32) * np.float32(stride[0])
    y = np.arange(size[0], dtype=np.float32) * np.float32(stride[1])
    return np.stack(np.broadcast_arrays(x, y[:, None]), -1).reshape(-1, 2)


def build_anchors(size: Size, stride: Sequence[float], base: np.ndarray) -> np.ndarray:
    """Return the boxes ``base``, ``(A, 4)``, at each cell of a map, ``(H * W * A, 4)``."""
    corners = np.tile(build_grid(size, stride), 2)
    return (base + corners[:, None]).reshape(-1, 4)


def decode_deltas(boxes: np.ndarray, deltas: np.ndarray, coder: Coder, size: Size) -> np.ndarray:
    """Move and resize boxes ``(n, 4)`` by deltas ``(n, K * 4)`` of ``K`` classes.

    Returns:
        ``(n, K, 4)``, clipped to height and width ``size`` if the coder says so.
    """
    deltas = deltas.reshape(len(boxes), -1, 4)
    deltas = deltas * np.float32(coder.stds) + np.float32(coder.means)
    boxes = boxes[:, None]
    extent = boxes[..., 2:] - boxes[..., :2]
    shift, growth = extent * deltas[..., :2], deltas[..., 2:]
    limit = coder.centre_limit
    if limit is not None:
        shift = shift.clip(-limit, limit)
    growth = growth.clip(-MAX_LOG_GROWTH if limit is None else None, MAX_LOG_GROWTH)
    center = (boxes[..., :2] + boxes[..., 2:]) * np.float32(0.5) + shift
    half = extent * np.exp(growth) * np.float32(0.5)
    decoded = np.concatenate([center - half, center + half], -1)
    return clip_boxes(decoded, size) if coder.clip_border else decoded


def clip_boxes(boxes: np.ndarray, size: Size) -> np.ndarray:
    """Clip boxes to an image of this height and width."""
    height, width = size
    return boxes.clip(0, np.float32([width, height, width, height]))


def invert_scale(scale: tuple[float, float]) -> np.ndarray:
    """Return the factors of boxes that undo resizing by factors of width and height, ``(4,)``."""
    return np.array([1 / factor for factor in scale * 2], np.float32)


def is_larger(boxes: np.ndarray, min_size: float) -> np.ndarray:
    """Return a mask of boxes wider and higher than ``min_size``; all if it is negative."""
    return (boxes[:, 2:] - boxes[:, :2] > min_size).all(1) | (min_size < 0)


def suppress(boxes: np.ndarray, scores: np.ndarray, groups: np.ndarray,
             threshold: float) -> np.ndarray:
    """Return the indices that non-maximum suppression keeps, by descending score.

    Only boxes of one group (class or level) suppress each other. Groups are moved apart before, as
    in mmcv, because that rounds the coordinates. All arrays have ``n`` rows.
    """
    if not len(boxes):
        return np.empty(0, np.int64)
    apart = boxes + (groups.astype(np.float32) * (boxes.max() + np.float32(1)))[:, None]
    order = np.argsort(-scores, kind='stable')
    is_kept = np.zeros(len(boxes), bool)
    for group in np.unique(groups):
        members = order[groups[order] == group]
        is_kept[members[nms_keep(apart[members], threshold)]] = True
    return order[is_kept[order]]


def nms_keep(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Return the indices of sorted boxes ``(n, 4)`` that overlap no kept box before them."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept, waiting = [], np.arange(len(boxes))
    while len(waiting):
        first, waiting = waiting[0], waiting[1:]
        kept.append(first)
        low = np.maximum(boxes[first, :2], boxes[waiting, :2])
        high = np.minimum(boxes[first, 2:], boxes[waiting, 2:])
        common = (high - low).clip(0).prod(1)
        with np.errstate(invalid='ignore', divide='ignore'):  # boxes without an area
            overlap = common / (areas[first] + areas[waiting] - common)
        waiting = waiting[~(overlap.astype(np.float64) > threshold)]
    return np.array(kept, np.int64)


def assign_levels(boxes: np.ndarray, finest_scale: float, num_levels: int) -> np.ndarray:
    """Return the pyramid level from which each box ``(n, 4)`` is pooled, ``(n,)``."""
    extent = boxes[:, 2:] - boxes[:, :2]
    scale = np.sqrt(extent[:, 0] * extent[:, 1])
    level = np.floor(np.log2(scale / np.float32(finest_scale) + np.float32(1e-6)))
    return level.clip(0, num_levels - 1).astype(np.int64)
