"""Bilinear resizing of images as in OpenCV, and of feature maps as in PyTorch.

Feature maps are resized by two matmuls, one for rows and one for columns.
"""
from __future__ import annotations

import numpy as np

OPENCV_BITS = 11  # precision of OpenCV's interpolation weights


def resize_image(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize an image with the same values as OpenCV's ``INTER_LINEAR``.

    OpenCV computes with integers: weights of 11 bits, and values truncated to 16 bits between rows
    and columns. Images are ``(H, W, c)``, uint8, or float32, with which it computes as PyTorch.
    """
    before = image.shape[:2]
    if before == size:
        return image
    if image.dtype != np.uint8:
        return resize_maps(image, size)
    if before == (2 * size[0], 2 * size[1]):  # OpenCV then averages four pixels.
        four = image.reshape(size[0], 2, size[1], 2, -1).astype(np.uint16)
        return ((four.sum((1, 3), dtype=np.uint16) + 2) >> 2).astype(np.uint8)
    left, weights = compute_opencv_weights(before[1], size[1], clamp=True)
    right = np.minimum(left + 1, before[1] - 1)
    source = image.astype(np.int32)
    wide = source[:, left] * weights[0, :, None] + source[:, right] * weights[1, :, None]
    wide >>= 4
    upper, weights = compute_opencv_weights(before[0], size[0], clamp=False)
    high = np.full((*size, image.shape[2]), 2, dtype=np.int32)
    for row, weight in ((upper, weights[0]), (upper + 1, weights[1])):
        high += (wide[np.clip(row, 0, before[0] - 1)] * weight[:, None, None]) >> 16
    return (high >> 2).astype(np.uint8)


def compute_opencv_weights(before: int, after: int, *,
                           clamp: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of the two neighbors of each new value, and the weights of both.

    With ``clamp``, values beyond the ends have the full weight of the end, as in OpenCV's rows.

    Returns:
        Indices ``(after,)`` and weights ``(2, after)``, int32, in units of ``2**-11``.
    """
    step = 1 / (after / before)
    position = ((np.arange(after) + 0.5) * step - 0.5).astype(np.float32)
    first = np.floor(position).astype(np.int32)
    fraction = position - first.astype(np.float32)
    if clamp:
        fraction[(first < 0) | (first >= before - 1)] = 0
        first = np.clip(first, 0, before - 1)
    one = np.float32(1)
    weights = np.rint(np.stack([one - fraction, fraction]) * np.float32(1 << OPENCV_BITS))
    return first, weights.astype(np.int32)


def build_resize_matrix(before: int, after: int, align_corners: bool) -> np.ndarray:
    """Return the matrix that resizes one axis as PyTorch does, ``(after, before)``, float32."""
    index = np.arange(after, dtype=np.float32)
    if align_corners:
        position = index * np.float32((before - 1) / (after - 1) if after > 1 else 0)
    else:
        scale = np.float32(before / after)
        position = np.maximum((index + np.float32(0.5)) * scale - np.float32(0.5), 0)
    first = np.minimum(position.astype(np.int64), before - 1)
    fraction = position - first.astype(np.float32)
    matrix = np.zeros((after, before), dtype=np.float32)
    lines = np.arange(after)
    matrix[lines, first] = 1 - fraction
    matrix[lines, np.minimum(first + 1, before - 1)] += fraction
    return matrix


def build_crop_matrix(before: int, padded: int, kept: int, after: int,
                      align_corners: bool) -> np.ndarray | None:
    """Return the matrix that resizes an axis to ``padded``, crops it to ``kept`` and resizes it.

    Returns:
        ``(after, before)``; None if the axis is unchanged.
    """
    if before == padded == kept == after:
        return None
    first = build_resize_matrix(before, padded, align_corners)[:kept]
    return build_resize_matrix(kept, after, align_corners) @ first if kept != after else first


def compute_padded_size(maps: tuple[int, ...], size: tuple[int, int],
                        stride: float | None) -> tuple[int, int]:
    """Return the size that maps are resized to before they are cropped to ``size``.

    Args:
        maps: Height and width of maps.
        size: Height and width of the network's input.
        stride: Stride of maps of an input that the network pads to whole patches. None if maps are
            resized to the input.
    """
    return size if stride is None else (int(maps[0] * stride), int(maps[1] * stride))


def resize_columns(values: np.ndarray, matrix: np.ndarray | None) -> np.ndarray:
    """Resize maps ``(h, w, K)`` to ``(h, W, K)``."""
    return values if matrix is None else np.matmul(matrix, values)


def resize_rows(values: np.ndarray, matrix: np.ndarray | None, part: slice) -> np.ndarray:
    """Resize maps ``(h, W, K)`` to ``(H, W, K)``, and return only some of the rows."""
    if matrix is None:
        return values[part]
    weights = matrix[part]
    used = np.flatnonzero(weights.any(0))
    first, last = used[0], used[-1] + 1
    rows = weights[:, first:last] @ values[first:last].reshape(last - first, -1)
    return rows.reshape(-1, *values.shape[1:])


def resize_maps(values: np.ndarray,
                size: tuple[int, int],
                align_corners: bool = False,
                stride: float | None = None) -> np.ndarray:
    """Resize maps ``(h, w, K)`` to ``(H, W, K)``; see :func:`compute_padded_size` for strides."""
    padded = compute_padded_size(values.shape[:2], size, stride)
    rows, columns = (
        build_crop_matrix(values.shape[i], padded[i], size[i], size[i], align_corners)
        for i in range(2))
    return resize_rows(resize_columns(values, columns), rows, slice(None))
