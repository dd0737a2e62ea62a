"""Bilinear resizing of images as OpenCV does it."""
from __future__ import annotations

import numpy as np

BITS = 11  # of OpenCV's weights


def resize(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An image of another size, with the values of OpenCV's ``INTER_LINEAR``.

    OpenCV computes with whole numbers: weights of 11 bits, and values cut to 16 bits between rows
    and columns.

    Args:
        image: ``(H, W, 3)``, uint8.
        size: Height and width to make.

    Returns:
        ``(*size, 3)``, uint8.
    """
    before = image.shape[:2]
    if before == size:
        return image
    if before == (2 * size[0], 2 * size[1]):  # the mean of four, as OpenCV takes it then
        four = image.reshape(size[0], 2, size[1], 2, -1).astype(np.uint16)
        return ((four.sum((1, 3), dtype=np.uint16) + 2) >> 2).astype(np.uint8)
    left, weights = neighbours(before[1], size[1], clamp=True)
    right = np.minimum(left + 1, before[1] - 1)
    source = image.astype(np.int32)
    wide = source[:, left] * weights[0, :, None] + source[:, right] * weights[1, :, None]
    wide >>= 4
    upper, weights = neighbours(before[0], size[0], clamp=False)
    high = np.full((*size, image.shape[2]), 2, dtype=np.int32)
    for row, weight in ((upper, weights[0]), (upper + 1, weights[1])):
        high += (wide[np.clip(row, 0, before[0] - 1)] * weight[:, None, None]) >> 16
    return (high >> 2).astype(np.uint8)


def neighbours(before: int, after: int, *, clamp: bool) -> tuple[np.ndarray, np.ndarray]:
    """The first of the two values that each new value lies between, and the weights of both.

    Args:
        before: Length of a line.
        after: Length to make.
        clamp: Give values beyond the ends the whole weight of the end, as OpenCV does in rows only.

    Returns:
        Indices ``(after,)`` and weights ``(2, after)``, int32, in units of 2 to the power of -11.
    """
    step = 1 / (after / before)
    place = ((np.arange(after) + 0.5) * step - 0.5).astype(np.float32)
    first = np.floor(place).astype(np.int32)
    share = place - first.astype(np.float32)
    if clamp:
        share[(first < 0) | (first >= before - 1)] = 0
        first = np.clip(first, 0, before - 1)
    one = np.float32(1)
    weights = np.rint(np.stack([one - share, share]) * np.float32(1 << BITS))
    return first, weights.astype(np.int32)
