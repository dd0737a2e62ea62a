"""Masks of detectors in the pixels of an image, as mmdet computes them.

Shapes: ``n`` objects, ``h, w`` a predicted mask, ``H, W`` the image.
"""
from __future__ import annotations

import numpy as np

from .preprocessing import Size


def paste(masks: np.ndarray, boxes: np.ndarray, size: Size, threshold: float) -> np.ndarray:
    """Masks of boxes in an image, by bilinear interpolation.

    Args:
        masks: Probabilities ``(n, h, w)``.
        boxes: Left, top, right, bottom in pixels, ``(n, 4)``.
        size: Height and width of the image.
        threshold: From which probability a pixel belongs to the object.

    Returns:
        ``(n, H, W)``, bool.
    """
    limit = np.array(size[::-1])
    low = np.clip(np.floor(boxes[:, :2]) - 1, 0, limit).astype(np.int64)
    high = np.clip(np.ceil(boxes[:, 2:]) + 1, low, limit).astype(np.int64)
    out = np.zeros((len(masks), *size), bool)
    for image, mask, box, (left, top), (right, bottom) in zip(
            out, masks, boxes, low, high, strict=True):
        rows = pasting(box[1], box[3], top, bottom, len(mask))
        columns = pasting(box[0], box[2], left, right, mask.shape[1])
        image[top:bottom, left:right] = rows @ mask @ columns.T >= threshold
    return out


def pasting(low: np.float32, high: np.float32, start: int, stop: int, num: int) -> np.ndarray:
    """Weights of bilinear interpolation along one axis, ``(stop - start, num)``; zero beyond.

    Args:
        low: Where the mask begins, in pixels.
        high: Where it ends.
        start: The first pixel that is wanted.
        stop: That behind the last.
        num: Of values of the mask along the axis.
    """
    pixel = np.arange(start, stop, dtype=np.float32) + np.float32(0.5)
    with np.errstate(invalid='ignore', divide='ignore'):
        at = (pixel - low) / (high - low) * np.float32(num) - np.float32(0.5)
    at[np.isinf(at)] = (num - 1) / 2  # of a box without width, as mmdet
    return (1 - abs(at[:, None] - np.arange(num, dtype=np.float32))).clip(0)


def boxes_around(masks: np.ndarray) -> np.ndarray:
    """The smallest boxes around masks ``(n, H, W)``: ``(n, 4)``; zeros around nothing."""
    boxes = np.zeros((len(masks), 4), np.float32)
    for box, mask in zip(boxes, masks, strict=True):
        columns, rows = mask.any(0).nonzero()[0], mask.any(1).nonzero()[0]
        if len(columns):
            box[:] = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
    return boxes
