"""LabelMe's JSON files, one an image."""
from __future__ import annotations

import base64
import binascii
import json
import math
import mmap
import re
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, DataIndex, Instance, index_images
from ..rle import encode_mask, encode_segmentation, get_box, merge_rles
from ..validation.image_files import open_image
from ..validation.segmentations import LARGEST, is_number
from ..validation.validation_report import abbreviate
from .image_pairing import count_unused, find_image
from .instance_records import (ALL, TEST_LEFT, TOO_FEW_POINTS, Reading, any_case, box_around,
                               files_below, read_text, split_folders)

POLYGONS = ('polygon', 'rectangle', 'oriented_rectangle', 'rotation')  # kinds of shapes
NO_AREA = ('point', 'points', 'line', 'linestrip')
NUM_POINTS = 64  # of the polygon that a circle becomes
Key = tuple[Any, ...]


def is_labelme(path: Path) -> bool:
    """Whether there are JSON files of LabelMe's form in the folder or in the two below."""
    if not path.is_dir():
        return False
    files = (file for below in ('', '*/', '*/*/') for file in path.glob(below + any_case('.json')))
    return any(map(looks_like_labelme, files))


def looks_like_labelme(file: Path) -> bool:
    """Whether a file has a list of shapes, anywhere: it may stand behind an image."""
    try:
        with file.open('rb') as handle, mmap.mmap(
                handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return re.search(rb'"shapes"\s*:', content) is not None
    except (OSError, ValueError):  # ValueError if it is empty
        return False


def read_labelme(path: Path, reading: Reading) -> dict[str, DataIndex]:
    """The parts of a data set in LabelMe's form."""
    folders = split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    images = {}
    for split, folder in folders.items():
        files = list(filter(looks_like_labelme, files_below(folder, ('.json', ), reading)))
        if split == 'test':
            reading.lose(TEST_LEFT, count=len(files))
        else:
            reading.labels.update(files)
            images[split] = [
                image for file in files if (image := _read_annotated_image(file, reading))
            ]
    count_unused(images.values(), reading)
    return {split: index_images(found) for split, found in images.items() if found}


def load_labelme(file: Path, reading: Reading) -> dict[str, Any] | None:
    """What a file says; None, and a fault, if it is not in LabelMe's form."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        reading.reject(file, f'cannot be read: {error}')
        return None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        reading.reject(file, f'must have a list of shapes, got {abbreviate(content)}')
        return None
    return content


def _read_annotated_image(file: Path, reading: Reading) -> AnnotatedImage | None:
    content = load_labelme(file, reading)
    if content is None:
        return None
    width, height = content.get('imageWidth'), content.get('imageHeight')
    said = (width, height) if isinstance(width, int) and isinstance(height, int) else None
    name = content.get('imagePath')
    image = find_image(file, name if isinstance(name, str) else None, [], reading)
    size = image and reading.size_of(image, said, file)
    if not image or not size:
        return None
    if _has_flags(content):
        reading.lose('flags of images are lost', reading.source(file))
    instances = _read_instances(file, content, size, reading)
    if instances is None:
        return None
    return AnnotatedImage(image, size, reading.source(file), instances)


def _read_instances(file: Path, content: dict[str, Any], size: tuple[int, int],
                    reading: Reading) -> list[Instance] | None:
    """Return the objects of an image, in which shapes with one label and group_id are one.

    Returns:
        None if a shape is wrong.
    """
    found: dict[Key, Instance] = {}
    is_whole = True
    for place, shape in enumerate(content['shapes'], 1):
        source = reading.source(file, f'shape {place}')
        try:
            label, points, is_box, mask = read_outline(shape, size, reading, source)
        except ValueError as error:
            reading.reject(file, str(error), f'shape {place}')
            is_whole = False
            continue
        if mask is not None:
            new = _of_mask(label, encode_mask(mask), source)
        elif points:
            new = Instance(label, box_around([points]), [] if is_box else [points], source)
        else:
            continue
        group = shape.get('group_id')
        key: Key = (label, group) if type(group) in (int, str) else (label, None, place)
        found[key] = _merge_instances(found[key], new, size) if key in found else new
    return list(found.values()) if is_whole else None


def _merge_instances(one: Instance, other: Instance, size: tuple[int, int]) -> Instance:
    """Return the object that two shapes are parts of."""
    polygons = [part.polygons or [_corners(part.box)] for part in (one, other)]
    if not one.mask and not other.mask:
        joined = polygons[0] + polygons[1]
        return Instance(one.label, box_around(joined), joined, one.source)
    codes = [
        part.mask or encode_segmentation(own, size[::-1])
        for part, own in zip((one, other), polygons, strict=True)
    ]
    return _of_mask(one.label, merge_rles(codes), one.source)


def _of_mask(label: str, code: dict[str, Any], source: str) -> Instance:
    left, top, width, height = get_box(code)
    return Instance(label, (left, top, left + width, top + height), [], source, mask=code)


class Outline(NamedTuple):
    """A shape: a mask, a polygon, or nothing if it has no area.

    Attributes:
        label: Name of the class.
        points: Polygon (x, y, x, y, ...) of pixels, or nothing.
        is_box: Whether the polygon is a mere box.
        mask: Array ``(H, W)`` of 0 and 1, uint8, of the image's size.
    """
    label: str
    points: list[float]
    is_box: bool = False
    mask: np.ndarray | None = None


def read_outline(shape: Any, size: tuple[int, int] | None, reading: Reading,
                 source: str) -> Outline:
    """Return the outline of a shape.

    Args:
        shape: Entry of ``shapes``.
        size: Width and height of the image. None leaves masks empty.
        reading: Counts what is lost.
        source: Name of the shape.

    Raises:
        ValueError: If it is malformed.
    """
    label = shape.get('label') if isinstance(shape, dict) else None
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'must have a label, got {abbreviate(shape)}')
    label, kind, points = label.strip(), shape.get('shape_type') or 'polygon', shape.get('points')
    _count_lost_shapes(shape, kind, reading, source)
    if not isinstance(points, list) or not all(map(_is_point, points)):
        raise UserError(f'points must be [[x, y], [x, y] ...], within {-LARGEST} ... {LARGEST}, '
                        f'got {abbreviate(points)}')
    if kind == 'mask':
        mask = _decode_mask(shape, points, size)
        if size and not mask.any():
            reading.lose('masks without a pixel are left out', source)
            return Outline(label, [])
        return Outline(label, [], mask=mask)
    if kind == 'rectangle' and len(points) == 2:
        (x, y), (u, v) = points
        return Outline(label, _corners((min(x, u), min(y, v), max(x, u), max(y, v))), True)
    if kind == 'circle':
        if len(points) != 2:
            raise UserError(f'is a circle of {len(points)} points, not of its centre and one on it')
        return Outline(label, _circle(*points))
    if kind in POLYGONS:
        if len(points) < 3:
            reading.lose(TOO_FEW_POINTS, source)
            return Outline(label, [])
        return Outline(label, [float(side) for point in points for side in point])
    return Outline(label, [])


def _decode_mask(shape: dict[str, Any], points: list[list[float]],
                 size: tuple[int, int] | None) -> np.ndarray:
    """Return the mask of a shape, which a PNG in base64 holds for the box of its two points.

    Raises:
        ValueError: If it is malformed, or not within the image.
    """
    text = shape.get('mask')
    if len(points) != 2 or not isinstance(text, str):
        raise UserError('is a mask: it must have two points, and a PNG in base64 as mask, got '
                        f'{len(points)} points and {abbreviate(text)}')
    (left, top), (right, bottom) = ([math.floor(side) for side in point] for point in points)
    box = (right - left + 1, bottom - top + 1)
    width, height = size or (max(0, right + 1), max(0, bottom + 1))
    if not (0 <= left <= right < width and 0 <= top <= bottom < height):
        raise UserError(f'is a mask from {left}, {top} to {right}, {bottom}, beyond its image of '
                        f'{width} x {height} pixels')
    if size is None:
        return np.zeros((0, 0), np.uint8)
    try:
        with open_image(BytesIO(base64.b64decode(text, validate=True))) as image:
            found = image.size
            pixels = np.asarray(image.convert('L')) > 0 if found == box else None
    except (OSError, binascii.Error) as error:
        raise UserError(f'is a mask that cannot be read: {error}') from error
    if pixels is None:
        raise UserError(f'is a mask of {found[0]} x {found[1]} pixels, and its points are of '
                        f'{box[0]} x {box[1]}')
    placed = np.zeros((height, width), np.uint8)
    placed[top:bottom + 1, left:right + 1] = pixels
    return placed


def _count_lost_shapes(shape: dict[str, Any], kind: str, reading: Reading, source: str) -> None:
    if kind in NO_AREA:
        reading.lose(f'shapes of kind {kind}, which have no area, are left out', source)
    elif kind not in (*POLYGONS, 'circle', 'mask'):
        reading.lose(f'shapes of kind {abbreviate(kind)}, which is not known, are left out', source)
    if _has_flags(shape):
        reading.lose('flags of shapes are lost', source)
    if shape.get('description'):
        reading.lose('descriptions of shapes are lost', source)
    if kind == 'circle':
        reading.lose(f'circles become polygons of {NUM_POINTS} points', source)


def _has_flags(entry: dict[str, Any]) -> bool:
    flags = entry.get('flags')
    return any(flags.values()) if isinstance(flags, dict) else bool(flags)


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(
        is_number(side, LARGEST) for side in point)


def _corners(box: tuple[float, float, float, float]) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom]


def _circle(centre: list[float], edge: list[float]) -> list[float]:
    radius = math.dist(centre, edge)
    angles = [2 * math.pi * number / NUM_POINTS for number in range(NUM_POINTS)]
    return [
        side for angle in angles
        for side in (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
    ]
