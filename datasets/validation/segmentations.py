"""Polygons and run lengths of COCO files, checked before pycocotools sees them.

What is malformed makes it read on behind the end, or ask for all memory for one polygon.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from colonnade.common.errors import UserError

from .image_files import MOST_PIXELS
from .validation_report import abbreviate

LARGEST = 2**20  # pixels: the widest image that OpenCV decodes
NUMBERS = {int, float}


def is_number(value: Any, largest: float = 2**53) -> bool:
    """Whether it is a number, not NaN and no larger than ``largest``."""
    return type(value) in (int, float) and abs(value) <= largest


def are_numbers(values: list[Any], largest: float = LARGEST) -> bool:
    """As :func:`is_number` of all, without a step of Python for each."""
    try:
        return not values or (set(map(type, values)) <= NUMBERS and -largest <= min(values)
                              and max(values) <= largest and not math.isnan(sum(values)))
    except OverflowError:  # a NaN hid an integer that no float holds
        return False


def has_other_size(mask: Any, size: list[int]) -> bool:
    """Whether it is an RLE with a height and width that are others."""
    said = mask.get('size') if isinstance(mask, dict) else None
    return is_size(said) and said != size


def is_size(value: Any) -> bool:
    """Whether it is a height and width."""
    return isinstance(value, list) and len(value) == 2 and all(
        type(side) is int and 0 < side <= MOST_PIXELS for side in value)


def segmentation_fault(mask: Any, size: list[int] | None, evaluated: bool) -> str | None:
    """What is wrong with a segmentation, if anything.

    Args:
        mask: A list of polygons or an RLE.
        size: Height and width of its image; ``None`` if they are not known.
        evaluated: Whether pycocotools will compare with it; mmdet passes over bad polygons.
    """
    if isinstance(mask, dict):
        return _run_length_fault(mask, size)
    if not isinstance(mask, list) or not all(isinstance(polygon, list) for polygon in mask):
        return 'segmentation must be a list of polygons, [[x, y, x, y, ...], ...], or an RLE'
    if not all(map(are_numbers, mask)):
        return f'polygons must be numbers of pixels within {-LARGEST} ... {LARGEST}'
    if evaluated and not all(map(is_polygon, mask)):
        return 'segmentation has a polygon that is not three points or more, [x, y, x, y, x, y, ' \
               '...]: the evaluation of masks cannot read it'
    return None


def is_polygon(coordinates: list[float]) -> bool:
    """Whether mmdet takes a list of numbers for a polygon."""
    return len(coordinates) >= 6 and len(coordinates) % 2 == 0


def _run_length_fault(mask: dict[str, Any], size: list[int] | None) -> str | None:
    said = mask.get('size')
    whole = isinstance(said, list) and len(said) == 2 and all(type(side) is int for side in said)
    if 'counts' not in mask or not whole or size not in (None, said):
        return f'the RLE must have counts and the size {size or "[height, width]"} of its image, ' \
               f'got size {abbreviate(said)}'
    counts = mask['counts']
    if isinstance(counts, str):
        try:
            counts = list(decoded_counts(counts))
        except ValueError as error:
            return f'the RLE cannot be decoded: {error}'
    if not isinstance(counts, list) or not all(
            type(n) is int and 0 <= n <= MOST_PIXELS for n in counts):
        return 'counts of the RLE must be a string, or a list of whole numbers of pixels'
    if size and sum(counts) != size[0] * size[1]:
        return f'the RLE has {sum(counts)} pixels, its image {size[0] * size[1]}'
    return None


def decoded_counts(counts: str) -> Iterator[int]:
    """The run lengths of a compressed RLE, as pycocotools' ``rleFrString`` decodes them.

    Five bits a character, the lowest first; from the fourth on as differences to the last but one.

    Raises:
        ValueError: If that is not what the string holds.
    """
    runs: list[int] = []
    value = shift = 0
    for character in counts:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise UserError(f'{character!r} does not occur in a string of counts')
        value |= (bits & 31) << shift
        shift += 5
        if shift > 60:
            raise UserError('a run is longer than any image')
        if bits & 32:  # the number goes on
            continue
        if bits & 16:
            value -= 1 << shift  # its sign
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        if runs[-1] < 0:
            raise UserError('a run is shorter than nothing')
        yield runs[-1]
        value = shift = 0
    if shift:
        raise UserError('the string ends within a number')
