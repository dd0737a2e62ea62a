"""LabelMe's JSON files, one an image."""
from __future__ import annotations

import json
import math
import mmap
import re
from pathlib import Path
from typing import Any

from ..data_validation.findings import shown
from ..data_validation.segmentations import LARGEST, is_number
from .instances import (ALL, TEST_LEFT, TOO_FEW_POINTS, AnnotatedImage, Instance, Part, Reading,
                        any_case, box_around, files_below, part_of, split_folders, text_of)
from .same_stem import image_of, say_unused

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


def read_labelme(path: Path, reading: Reading) -> dict[str, Part]:
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
            images[split] = [image for file in files if (image := _image(file, reading))]
    say_unused(images.values(), reading)
    return {split: part_of(found) for split, found in images.items() if found}


def load_labelme(file: Path, reading: Reading) -> dict[str, Any] | None:
    """What a file says; None, and a fault, if it is not in LabelMe's form."""
    try:
        content = json.loads(text_of(file))
    except (OSError, ValueError, RecursionError) as error:
        reading.fault(file, f'cannot be read: {error}')
        return None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        reading.fault(file, f'must have a list of shapes, got {shown(content)}')
        return None
    return content


def _image(file: Path, reading: Reading) -> AnnotatedImage | None:
    content = load_labelme(file, reading)
    if content is None:
        return None
    width, height = content.get('imageWidth'), content.get('imageHeight')
    said = (width, height) if isinstance(width, int) and isinstance(height, int) else None
    name = content.get('imagePath')
    image = image_of(file, name if isinstance(name, str) else None, [], reading)
    size = image and reading.size_of(image, said, file)
    if not image or not size:
        return None
    if _has_flags(content):
        reading.lose('flags of images are lost', reading.source(file))
    return AnnotatedImage(image, size, reading.source(file), _instances(file, content, reading))


def _instances(file: Path, content: dict[str, Any], reading: Reading) -> list[Instance]:
    """The objects of an image; shapes with the same label and group_id are one."""
    found: dict[Key, Instance] = {}
    for place, shape in enumerate(content['shapes'], 1):
        source = reading.source(file, f'shape {place}')
        try:
            label, points, is_box = outline(shape, reading, source)
        except ValueError as error:
            reading.fault(file, str(error), f'shape {place}')
            continue
        if not points:
            continue
        group = shape.get('group_id')
        key: Key = (label, group) if type(group) in (int, str) else (label, None, place)
        new = Instance(label, box_around([points]), [points], source)
        if key in found:
            polygons = found[key].polygons or [_corners(found[key].box)]
            new = Instance(label, box_around([*polygons, points]), [*polygons, points],
                           found[key].source)  # yapf: disable
        elif is_box:
            new.polygons = []
        found[key] = new
    return list(found.values())


def outline(shape: Any, reading: Reading, source: str) -> tuple[str, list[float], bool]:
    """Label and polygon of a shape, and whether it is a mere box; no points if it has no area.

    Raises:
        ValueError: If it is malformed, or a mask.
    """
    label = shape.get('label') if isinstance(shape, dict) else None
    if not isinstance(label, str) or not label.strip():
        raise ValueError(f'must have a label, got {shown(shape)}')
    label, kind, points = label.strip(), shape.get('shape_type') or 'polygon', shape.get('points')
    if kind == 'mask':
        raise ValueError('is a mask: save it as a polygon')
    _count_lost(shape, kind, reading, source)
    if not isinstance(points, list) or not all(map(_is_point, points)):
        raise ValueError(f'points must be [[x, y], [x, y] ...], within {-LARGEST} ... {LARGEST}, '
                         f'got {shown(points)}')
    if kind == 'rectangle' and len(points) == 2:
        (x, y), (u, v) = points
        return label, _corners((min(x, u), min(y, v), max(x, u), max(y, v))), True
    if kind == 'circle':
        if len(points) != 2:
            raise ValueError(
                f'is a circle of {len(points)} points, not of its centre and one on it')
        return label, _circle(*points), False
    if kind in ('polygon', 'rectangle', 'oriented_rectangle'):
        if len(points) < 3:
            reading.lose(TOO_FEW_POINTS, source)
            return label, [], False
        return label, [float(side) for point in points for side in point], False
    return label, [], False


def _count_lost(shape: dict[str, Any], kind: str, reading: Reading, source: str) -> None:
    if kind not in ('polygon', 'rectangle', 'oriented_rectangle', 'circle'):
        reading.lose(f'shapes of kind {kind}, which have no area, are left out', source)
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
