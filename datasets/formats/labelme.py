"""LabelMe JSON files, one per image."""
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
from ..validation.segmentations import MAX_COORDINATE, is_number
from ..validation.validation_report import abbreviate
from .data_format import (ALL, TEST_LEFT, TOO_FEW_POINTS, ReadContext, compute_box, find_files,
                          find_split_folders, glob_nearby, read_text)

POLYGONS = ('polygon', 'rectangle', 'oriented_rectangle', 'rotation')
NO_AREA = ('point', 'points', 'line', 'linestrip')
NUM_POINTS = 64  # points of the polygon that replaces a circle


def is_labelme(path: Path) -> bool:
    """Return True if a folder or the two levels below have LabelMe files."""
    return path.is_dir() and any(map(looks_like_labelme, glob_nearby(path, '.json')))


def looks_like_labelme(file: Path) -> bool:
    """Return True if a file has a list of shapes, which can follow an embedded image."""
    try:
        with file.open('rb') as handle, mmap.mmap(
                handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return re.search(rb'"shapes"\s*:', content) is not None
    except (OSError, ValueError):  # ValueError if it is empty
        return False


def read_labelme(path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a dataset in LabelMe format."""
    folders = find_split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    images = {}
    for split, folder in folders.items():
        files = list(filter(looks_like_labelme, find_files(folder, ('.json', ), context)))
        if split == 'test':
            context.count_dropped(TEST_LEFT, count=len(files))
            continue
        context.labels.update(files)
        images[split] = [image for file in files if (image := _read_annotated_image(file, context))]
    context.count_unused_images(images.values())
    return {split: index_images(found) for split, found in images.items() if found}


def load_labelme(file: Path, context: ReadContext) -> dict[str, Any] | None:
    """Return the content of a file, or None after rejecting it."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        context.reject(file, f'cannot be read: {error}')
        return None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        context.reject(file, f'must have a list of shapes, got {abbreviate(content)}')
        return None
    return content


def find_labelme_image(file: Path, content: dict[str, Any], context: ReadContext) -> Path | None:
    """Return the image of a file, or None after reporting that it does not exist."""
    name = content.get('imagePath')
    return context.find_image(file, name if isinstance(name, str) else None)


def _read_annotated_image(file: Path, context: ReadContext) -> AnnotatedImage | None:
    content = load_labelme(file, context)
    if content is None:
        return None
    width, height = content.get('imageWidth'), content.get('imageHeight')
    declared = (width, height) if isinstance(width, int) and isinstance(height, int) else None
    image = find_labelme_image(file, content, context)
    size = image and context.read_size(image, declared, file)
    if not image or not size:
        return None
    if _has_flags(content):
        context.count_dropped('flags of images are dropped', context.locate(file))
    instances: dict[tuple[Any, ...], Instance] = {}
    is_valid = True
    for number, shape in enumerate(content['shapes'], 1):
        location = context.locate(file, f'shape {number}')
        try:
            outline = read_outline(shape, size, context, location)
        except ValueError as error:
            context.reject(file, str(error), f'shape {number}')
            is_valid = False
            continue
        label, points = outline.label, outline.points
        if outline.mask is not None:
            instance = _make_mask_instance(label, encode_mask(outline.mask), location)
        elif points:
            polygons = [] if outline.is_box else [points]
            instance = Instance(label, compute_box([points]), polygons, location)
        else:
            continue
        # Shapes with the same label and group_id are parts of one object.
        group = shape.get('group_id')
        key = (label, group) if type(group) in (int, str) else (label, None, number)
        if key in instances:
            instance = _merge_instances(instances[key], instance, size)
        instances[key] = instance
    if not is_valid:
        return None
    return AnnotatedImage(image, size, context.locate(file), list(instances.values()))


def _merge_instances(one: Instance, other: Instance, size: tuple[int, int]) -> Instance:
    polygons = [part.polygons or [_get_corners(part.box)] for part in (one, other)]
    if not one.mask and not other.mask:
        joined = polygons[0] + polygons[1]
        return Instance(one.label, compute_box(joined), joined, one.source)
    rles = [
        part.mask or encode_segmentation(own, size[::-1])
        for part, own in zip((one, other), polygons, strict=True)
    ]
    return _make_mask_instance(one.label, merge_rles(rles), one.source)


def _make_mask_instance(label: str, rle: dict[str, Any], location: str) -> Instance:
    left, top, width, height = get_box(rle)
    return Instance(label, (left, top, left + width, top + height), [], location, mask=rle)


class Outline(NamedTuple):
    """A shape: a mask, a polygon, or neither if it has no area.

    Attributes:
        label: Name of the class.
        points: Polygon (x, y, x, y, ...) in pixels, or an empty list.
        is_box: Whether the polygon is a box.
        mask: Array ``(H, W)`` of 0 and 1, uint8, with the size of the image.
    """
    label: str
    points: list[float]
    is_box: bool = False
    mask: np.ndarray | None = None


def read_outline(shape: Any, size: tuple[int, int] | None, context: ReadContext,
                 location: str) -> Outline:
    """Return the outline of a shape.

    Args:
        shape: Entry of ``shapes``.
        size: Width and height of the image; with None, masks are not decoded.
        context: Counts what is dropped.
        location: Location of the shape.

    Raises:
        ValueError: If it is malformed.
    """
    label = shape.get('label') if isinstance(shape, dict) else None
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'must have a label, got {abbreviate(shape)}')
    label, kind, points = label.strip(), shape.get('shape_type') or 'polygon', shape.get('points')
    _count_dropped_properties(shape, kind, context, location)
    if not isinstance(points, list) or not all(map(_is_point, points)):
        raise UserError(f'points must be [[x, y], [x, y] ...], within {-MAX_COORDINATE} ... '
                        f'{MAX_COORDINATE}, got {abbreviate(points)}')
    if kind == 'mask':
        mask = _decode_mask(shape, points, size)
        if size and not mask.any():
            context.count_dropped('masks without pixels are omitted', location)
            return Outline(label, [])
        return Outline(label, [], mask=mask)
    if kind == 'rectangle' and len(points) == 2:
        (x, y), (u, v) = points
        return Outline(label, _get_corners((min(x, u), min(y, v), max(x, u), max(y, v))), True)
    if kind == 'circle':
        if len(points) != 2:
            raise UserError('a circle must have two points, its center and one on it, got '
                            f'{len(points)} points')
        (x, y), radius = points[0], math.dist(*points)
        angles = [2 * math.pi * number / NUM_POINTS for number in range(NUM_POINTS)]
        return Outline(label, [
            side for angle in angles
            for side in (x + radius * math.cos(angle), y + radius * math.sin(angle))
        ])
    if kind in POLYGONS:
        if len(points) < 3:
            context.count_dropped(TOO_FEW_POINTS, location)
            return Outline(label, [])
        return Outline(label, [float(side) for point in points for side in point])
    return Outline(label, [])


def _decode_mask(shape: dict[str, Any], points: list[list[float]],
                 size: tuple[int, int] | None) -> np.ndarray:
    """Return the mask of a shape: a base64-encoded PNG for the box of its two points."""
    text = shape.get('mask')
    if len(points) != 2 or not isinstance(text, str):
        raise UserError('a mask must have two points and a base64-encoded PNG, got '
                        f'{len(points)} points and {abbreviate(text)}')
    (left, top), (right, bottom) = ([math.floor(side) for side in point] for point in points)
    box_size = (right - left + 1, bottom - top + 1)
    width, height = size or (max(0, right + 1), max(0, bottom + 1))
    if not (0 <= left <= right < width and 0 <= top <= bottom < height):
        raise UserError(f'its mask from {left}, {top} to {right}, {bottom} extends beyond the '
                        f'image of {width} x {height} pixels')
    if size is None:
        return np.zeros((0, 0), np.uint8)
    try:
        with open_image(BytesIO(base64.b64decode(text, validate=True))) as image:
            mask_size = image.size
            pixels = np.asarray(image.convert('L')) > 0 if mask_size == box_size else None
    except (OSError, binascii.Error) as error:
        raise UserError(f'its mask cannot be read: {error}') from error
    if pixels is None:
        raise UserError(f'its mask has {mask_size[0]} x {mask_size[1]} pixels, but its points '
                        f'enclose {box_size[0]} x {box_size[1]}')
    mask = np.zeros((height, width), np.uint8)
    mask[top:bottom + 1, left:right + 1] = pixels
    return mask


def _count_dropped_properties(shape: dict[str, Any], kind: str, context: ReadContext,
                              location: str) -> None:
    notes = {
        f'{kind} shapes, which have no area, are omitted': kind in NO_AREA,
        f'shapes of the unknown type {abbreviate(kind)} are omitted': kind not in (
            *NO_AREA, *POLYGONS, 'circle', 'mask'),
        'flags of shapes are dropped': _has_flags(shape),
        'descriptions of shapes are dropped': shape.get('description'),
        f'circles become polygons of {NUM_POINTS} points': kind == 'circle',
    }  # yapf: disable
    for note, applies in notes.items():
        if applies:
            context.count_dropped(note, location)


def _has_flags(entry: dict[str, Any]) -> bool:
    flags = entry.get('flags')
    return any(flags.values()) if isinstance(flags, dict) else bool(flags)


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(
        is_number(side, MAX_COORDINATE) for side in point)


def _get_corners(box: tuple[float, float, float, float]) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom]
