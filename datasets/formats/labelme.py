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
from typing import Any

import numpy as np

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, Instance
from ..rle import encode_mask
from ..validation.image_files import open_image
from ..validation.segmentations import MAX_COORDINATE
from ..validation.validation_report import abbreviate
from .data_format import (ALL, TEST_LEFT, TOO_FEW_POINTS, ReadContext, compute_box, find_files,
                          find_split_folders, glob_nearby, read_text)
from .shapes import NUM_POINTS, Shapes, is_point, make_ellipse, set_mask

POLYGONS = ('polygon', 'rectangle', 'oriented_rectangle', 'rotation')
NO_AREA = ('point', 'points', 'line', 'linestrip')


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


def read_labelme(path: Path, context: ReadContext) -> Shapes:
    """Return the shapes of a folder, or of its splits; each shape with an area is an instance."""
    folders = find_split_folders(path)
    if 'train' not in folders:
        folders = {ALL: path}
    if test := folders.pop('test', None):
        context.count_dropped(TEST_LEFT, count=len(_find_labelme_files(test, context)))
    images = {}
    for split, folder in folders.items():
        files = _find_labelme_files(folder, context)
        context.labels.update(files)
        images[split] = [image for file in files if (image := _read_image(file, context))]
    context.count_unused_images(images.values())
    return Shapes(images, folders=folders)


def _find_labelme_files(folder: Path, context: ReadContext) -> list[Path]:
    return list(filter(looks_like_labelme, find_files(folder, ('.json', ), context.count_link)))


def _read_image(file: Path, context: ReadContext) -> AnnotatedImage | None:
    """Return the image of a file and its shapes, or None after rejecting it."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        context.reject(file, f'cannot be read: {error}')
        return None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        context.reject(file, f'must have a list of shapes, got {abbreviate(content)}')
        return None
    name, width, height = (content.get(key) for key in ('imagePath', 'imageWidth', 'imageHeight'))
    image = context.find_image(file, name if isinstance(name, str) else None)
    declared = (width, height) if isinstance(width, int) and isinstance(height, int) else None
    size = image and context.read_size(image, declared, file)
    if not image or not size:
        return None
    if _has_flags(content):
        context.count_dropped('flags of images are dropped', context.locate(file))
    instances = []
    is_valid = True
    for number, shape in enumerate(content['shapes'], 1):
        location = context.locate(file, f'shape {number}')
        try:
            if instance := _read_shape(shape, size, context, location):
                instances.append(instance)
        except ValueError as error:
            context.reject(file, str(error), f'shape {number}')
            is_valid = False
    return AnnotatedImage(image, size, context.locate(file), instances) if is_valid else None


def _read_shape(shape: Any, size: tuple[int, int], context: ReadContext,
                location: str) -> Instance | None:
    """Return the instance of a shape, or None if it has no area.

    Args:
        size: Width and height of the image.
    """
    label = shape.get('label') if isinstance(shape, dict) else None
    if not isinstance(label, str) or not label.strip():
        raise UserError(f'must have a label, got {abbreviate(shape)}')
    kind, points = shape.get('shape_type') or 'polygon', shape.get('points')
    _count_dropped_properties(shape, kind, context, location)
    if not isinstance(points, list) or not all(map(is_point, points)):
        raise UserError(f'points must be [[x, y], [x, y], ...] from {-MAX_COORDINATE} to '
                        f'{MAX_COORDINATE}, got {abbreviate(points)}')
    group = shape.get('group_id')
    instance = Instance(label.strip(), (0, 0, 0, 0), [], location,
                        group=group if type(group) in (int, str) else None)  # yapf: disable
    if kind == 'mask':
        return set_mask(instance, encode_mask(_decode_mask(shape, points, size)), context)
    if kind == 'circle':
        if len(points) != 2:
            raise UserError('a circle must have two points, its center and one on its edge, got '
                            f'{len(points)} points')
        radius = math.dist(*points)
        points = make_ellipse(points[0], (radius, radius))
    elif kind not in POLYGONS:
        return None
    is_box = kind == 'rectangle' and len(points) == 2
    if len(points) < 3 and not is_box:
        context.count_dropped(TOO_FEW_POINTS, location)
        return None
    polygon = [float(side) for point in points for side in point]
    instance.box = compute_box([polygon])
    instance.polygons = [] if is_box else [polygon]
    return instance


def _decode_mask(shape: dict[str, Any], points: list[list[float]], size: tuple[int,
                                                                               int]) -> np.ndarray:
    """Return the mask ``(H, W)`` of a shape: a base64-encoded PNG for the box of its two points."""
    text = shape.get('mask')
    if len(points) != 2 or not isinstance(text, str):
        raise UserError('a mask must have two points and a base64-encoded PNG, got '
                        f'{len(points)} points and {abbreviate(text)}')
    (left, top), (right, bottom) = ([math.floor(side) for side in point] for point in points)
    box_size = (right - left + 1, bottom - top + 1)
    width, height = size
    if not (0 <= left <= right < width and 0 <= top <= bottom < height):
        raise UserError(f'its mask from {left}, {top} to {right}, {bottom} extends beyond the '
                        f'image of {width} x {height} pixels')
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
