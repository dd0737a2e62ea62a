"""Bilinear resizing of maps of numbers, as torch does it: one product for rows, one for columns."""
from __future__ import annotations

import numpy as np


def interpolation(before: int, after: int, align_corners: bool) -> np.ndarray:
    """The matrix that resizes a line of values, ``(after, before)``, float32."""
    index = np.arange(after, dtype=np.float32)
    if align_corners:
        place = index * np.float32((before - 1) / (after - 1) if after > 1 else 0)
    else:
        place = np.maximum((index + np.float32(0.5)) * np.float32(before / after) - np.float32(0.5),
                           0)
    first = np.minimum(place.astype(np.int64), before - 1)
    share = place - first.astype(np.float32)
    matrix = np.zeros((after, before), dtype=np.float32)
    lines = np.arange(after)
    matrix[lines, first] = 1 - share
    matrix[lines, np.minimum(first + 1, before - 1)] += share
    return matrix


def line_of(before: int, whole: int, kept: int, after: int,
            align_corners: bool) -> np.ndarray | None:
    """The matrix of a line that is resized, cut and resized again.

    Args:
        before: Its length.
        whole: What it is resized to.
        kept: How much of that is kept, from the start.
        after: What that is resized to.
        align_corners: As of torch's ``interpolate``.

    Returns:
        ``(after, before)``; None if the line stays as it is.
    """
    if before == whole == kept == after:
        return None
    first = interpolation(before, whole, align_corners)[:kept]
    return interpolation(kept, after, align_corners) @ first if kept != after else first


def across(values: np.ndarray, columns: np.ndarray | None) -> np.ndarray:
    """Maps ``(h, w, K)`` with other columns, ``(h, W, K)``."""
    return values if columns is None else np.matmul(columns, values)


def down(values: np.ndarray, rows: np.ndarray | None, part: slice) -> np.ndarray:
    """Some rows, ``(n, W, K)``, of those that a matrix makes of ``(h, W, K)``."""
    if rows is None:
        return values[part]
    weights = rows[part]
    used = np.flatnonzero(weights.any(0))
    first, last = used[0], used[-1] + 1
    made = weights[:, first:last] @ values[first:last].reshape(last - first, -1)
    return made.reshape(-1, *values.shape[1:])


def resized(values: np.ndarray, size: tuple[int, int], align_corners: bool = False) -> np.ndarray:
    """Maps ``(h, w, K)`` of another size, ``(H, W, K)``."""
    rows, columns = (
        line_of(values.shape[i], size[i], size[i], size[i], align_corners) for i in range(2))
    return down(across(values, columns), rows, slice(None))
