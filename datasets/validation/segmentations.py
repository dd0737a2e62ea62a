"""Checks of polygons and run-length encodings before pycocotools reads them.

Malformed ones make pycocotools read beyond the end of memory, or allocate all of it.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from colonnade.common.errors import UserError

from .image_files import MAX_PIXELS
from .validation_report import abbreviate

MAX_COORDINATE = 2**20  # pixels; width of the widest image that OpenCV decodes
NUMBERS = {int, float}


def is_number(value: Any, limit: float = 2**53) -> bool:
    """Return True if a value is a number other than NaN, of at most ``limit`` in magnitude."""
    return type(value) in (int, float) and abs(value) <= limit


def are_numbers(values: list[Any], limit: float = MAX_COORDINATE) -> bool:
    """Return True if :func:`is_number` holds for all values; without a Python loop."""
    try:
        return not values or (set(map(type, values)) <= NUMBERS and -limit <= min(values)
                              and max(values) <= limit and not math.isnan(sum(values)))
    except OverflowError:  # a NaN hid an integer that no float holds
        return False


def is_size(value: Any) -> bool:
    """Return True if a value is ``[height, width]``."""
    return isinstance(value, list) and len(value) == 2 and all(
        type(side) is int and 0 < side <= MAX_PIXELS for side in value)


def is_polygon(coordinates: list[float]) -> bool:
    """Return True if mmdet accepts a list of numbers as a polygon."""
    return len(coordinates) >= 6 and len(coordinates) % 2 == 0


def find_segmentation_error(mask: Any, size: list[int] | None, evaluated: bool) -> str | None:
    """Return what is wrong with a segmentation, or None.

    Args:
        mask: List of polygons, or an RLE.
        size: Height and width of the image, or None if unknown.
        evaluated: Whether pycocotools evaluates with it; mmdet ignores invalid polygons.
    """
    if isinstance(mask, dict):
        return _find_rle_error(mask, size)
    if not isinstance(mask, list) or not all(isinstance(polygon, list) for polygon in mask):
        return 'segmentation must be a list of polygons, [[x, y, x, y, ...], ...], or an RLE'
    if not all(map(are_numbers, mask)):
        return f'polygons must be numbers of pixels within {-MAX_COORDINATE} ... {MAX_COORDINATE}'
    if evaluated and not all(map(is_polygon, mask)):
        return 'segmentation has a polygon that is not three or more points, [x, y, x, y, x, y, ' \
               '...]: masks cannot be evaluated'
    return None


def _find_rle_error(mask: dict[str, Any], size: list[int] | None) -> str | None:
    declared = mask.get('size')
    is_pair = isinstance(declared, list) and len(declared) == 2 and all(
        type(side) is int for side in declared)
    if 'counts' not in mask or not is_pair or size not in (None, declared):
        return f'the RLE must have counts and the size {size or "[height, width]"} of its image, ' \
               f'got size {abbreviate(declared)}'
    counts = mask['counts']
    if isinstance(counts, str):
        try:
            counts = list(decode_counts(counts))
        except ValueError as error:
            return f'the RLE cannot be decoded: {error}'
    if not isinstance(counts, list) or not all(
            type(count) is int and 0 <= count <= MAX_PIXELS for count in counts):
        return 'counts of the RLE must be a string, or a list of integer numbers of pixels'
    if size and sum(counts) != size[0] * size[1]:
        return f'the RLE has {sum(counts)} pixels, but its image {size[0] * size[1]}'
    return None


def decode_counts(counts: str) -> Iterator[int]:
    """Yield the run lengths of a compressed RLE, as ``rleFrString`` of pycocotools decodes them.

    Each character holds five bits, lowest first. From the fourth run on, a value is the difference
    from the run before the previous one.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise UserError(f'{character!r} is not a valid character in compressed counts')
        value |= (bits & 31) << shift
        shift += 5
        if shift > 60:
            raise UserError('a run is longer than any image')
        if bits & 32:  # continuation bit
            continue
        if bits & 16:  # sign bit
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        if runs[-1] < 0:
            raise UserError('a run has a negative length')
        yield runs[-1]
        value = shift = 0
    if shift:
        raise UserError('the string ends in the middle of a number')
