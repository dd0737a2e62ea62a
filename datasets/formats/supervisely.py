"""Projects of Supervisely: meta.json, and ann/ and img/ in a folder for each dataset.

https://docs.supervisely.com/data-organization/00_ann_format_navi
"""
from __future__ import annotations

import base64
import json
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, Instance
from ..rle import decode_rle, encode_crop, encode_mask, encode_segmentation
from ..validation.image_files import open_image
from ..validation.validation_report import abbreviate
from .data_format import (ALL, SPLITS, TEST_LEFT, TOO_FEW_POINTS, ReadContext, compute_box,
                          list_images, read_start, read_text, remove_number)
from .shapes import Shapes, is_point, set_mask

NO_AREA = ('point', 'line', 'graph')
MAX_MASK_BYTES = 2**28  # of a decompressed PNG


def is_supervisely(path: Path) -> bool:
    """Return True if a folder has meta.json and datasets with annotations and images."""
    return path.is_dir() and b'"classes"' in read_start(path / 'meta.json', 2**16) and bool(
        _find_datasets(path))


def _find_datasets(path: Path) -> list[Path]:
    """Return the folders of all datasets, which can be nested: ``a/datasets/b``."""
    found = []
    for folder in sorted(filter(Path.is_dir, path.iterdir())):
        if (folder / 'ann').is_dir() and (folder / 'img').is_dir():
            found.append(folder)
        if (folder / 'datasets').is_dir():
            found += _find_datasets(folder / 'datasets')
    return found


def read_supervisely(path: Path, context: ReadContext) -> Shapes:
    """Return the shapes of a project; datasets that are named like splits are the splits."""
    context.tables.add(path / 'meta.json')
    classes = _read_classes(path / 'meta.json', context)
    if classes is None:
        return Shapes({})
    folders: dict[str, list[Path]] = {}
    for folder in _find_datasets(path):
        folders.setdefault(_find_split(folder, path), []).append(folder)
    for folder in folders.pop('test', ()):
        context.count_dropped(TEST_LEFT, count=len(list(list_images(folder / 'img'))))
    for folder in folders.pop(ALL, ()) if 'train' in folders else ():
        context.count_dropped('datasets that are not named like a split are not used',
                              context.locate(folder))
    images = {
        split: [
            image for folder in found for file in sorted((folder / 'ann').glob('[!.]*.json'))
            if (image := _read_image(file, classes, context))
        ]
        for split, found in folders.items()
    }
    context.count_unused_images(images.values())
    return Shapes(images, classes)


def _find_split(folder: Path, root: Path) -> str:
    """Return the split that a dataset, or the nearest one that it is nested in, is named after."""
    for part in reversed(folder.relative_to(root).parts):
        for split, names in SPLITS.items():
            if remove_number(part) in names:
                return split
    return ALL


def _read_classes(file: Path, context: ReadContext) -> list[str] | None:
    """Return the names of the classes, or None after reporting an error."""
    try:
        content = json.loads(read_text(file))
        return [str(each['title']) for each in content['classes']]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        context.add_error(file, f'must have classes with titles: {error!r}')
        return None


def _read_image(file: Path, classes: list[str], context: ReadContext) -> AnnotatedImage | None:
    """Return the image of a file and its objects, or None after rejecting it."""
    context.labels.add(file)
    folder = file.parent.with_name('img')
    image = folder / file.stem
    if image.is_file():
        context.owners[image] = file
    elif found := context.find_image(file, file.stem, [folder]):  # old projects omit its suffix
        image = found
    else:
        return None
    try:
        content = json.loads(read_text(file))
        objects = list(content['objects'])
        width, height = (int(content['size'][key]) for key in ('width', 'height'))
    except (OSError, ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        context.reject(file, f'must have the size of the image and objects: {error!r}')
        return None
    size = context.read_size(image, (width, height), file)
    if size is None:
        return None
    if content.get('tags'):
        context.count_dropped('tags of images are dropped', context.locate(file))
    instances = []
    for number, entry in enumerate(objects, 1):
        location = context.locate(file, f'object {number}')
        try:
            instance = _read_object(entry, size, context, location)
            if instance and instance.label not in classes:
                raise UserError(f'has the class {instance.label!r}, which meta.json does not list')
        except ValueError as error:
            context.reject(file, str(error), f'object {number}')
            return None
        if instance:
            instances.append(instance)
    return AnnotatedImage(image, size, context.locate(file), instances)


def _read_object(entry: Any, size: tuple[int, int], context: ReadContext,
                 location: str) -> Instance | None:
    """Return the instance of an object, or None if it has no area."""
    if not isinstance(entry, dict) or not isinstance(entry.get('classTitle'), str):
        raise UserError(f'must have a classTitle, got {abbreviate(entry)}')
    kind = entry.get('geometryType')
    if entry.get('tags'):
        context.count_dropped('tags of objects are dropped', location)
    if kind not in ('bitmap', 'polygon', 'rectangle'):
        what = f'objects of type {abbreviate(kind)}'
        context.count_dropped(
            f'{what}, which have no area, are omitted'
            if kind in NO_AREA else f'{what}, which Colonnade does not read, are omitted', location)
        return None
    instance = Instance(entry['classTitle'], (0, 0, 0, 0), [], location)
    if kind == 'bitmap':
        return set_mask(instance, _decode_bitmap(entry.get('bitmap'), size), context)
    points = entry.get('points')
    exterior, interior = (_read_points(points, key) for key in ('exterior', 'interior'))
    if kind == 'rectangle':
        if len(exterior[0]) != 4:
            raise UserError(f'a rectangle must have two points, got {len(exterior[0]) // 2}')
        (x1, y1, x2, y2), = exterior
        # The last row and column belong to the rectangle.
        instance.box = min(x1, x2), min(y1, y2), max(x1, x2) + 1, max(y1, y2) + 1
        return instance
    if len(exterior[0]) < 6:
        context.count_dropped(TOO_FEW_POINTS, location)
        return None
    instance.box, instance.polygons = compute_box(exterior), exterior
    if holes := [polygon for polygon in interior if len(polygon) >= 6]:
        mask, hole = (
            decode_rle(encode_segmentation(each, size[::-1])) for each in (exterior, holes))
        instance.polygons = []
        return set_mask(instance, encode_mask(mask & ~hole), context)
    return instance


def _read_points(points: Any, key: str) -> list[list[float]]:
    """Return polygons x, y, ...: the exterior, or all interiors."""
    value = points.get(key) if isinstance(points, dict) else None
    polygons: Any = [value] if key == 'exterior' else value or []
    if not isinstance(polygons, list) or not all(
            isinstance(polygon, list) and all(map(is_point, polygon)) for polygon in polygons):
        raise UserError(f'{key} must be points [x, y], got {abbreviate(value)}')
    return [[float(side) for point in polygon for side in point] for polygon in polygons]


def _decode_bitmap(bitmap: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Return the RLE of a mask: a compressed PNG in base64, and its top left corner."""
    try:
        decompressor = zlib.decompressobj()
        content = decompressor.decompress(base64.b64decode(bitmap['data']), MAX_MASK_BYTES)
        left, top = map(int, bitmap['origin'])
        with open_image(BytesIO(content)) as opened:
            image: Image.Image = opened
            width, height = image.size
            fits = min(left, top) >= 0 and left + width <= size[0] and top + height <= size[1]
            if fits and ('A' in image.getbands() or 'transparency' in image.info):
                image = image.convert('RGBA').getchannel('A')
            mask = np.asarray(image) > 0 if fits else None
    except (OSError, zlib.error, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f'its bitmap cannot be read: {error!r}') from error
    if mask is None:
        raise UserError(f'its bitmap of {width} x {height} pixels at {left}, {top} extends beyond '
                        f'the image of {size[0]} x {size[1]}')
    if mask.ndim != 2:
        raise UserError('its bitmap must have one channel or transparency')
    return encode_crop(mask, top, left, size[::-1])
