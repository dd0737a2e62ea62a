"""JSON files of the VGG Image Annotator (VIA), versions 1 and 2: exports and projects.

https://www.robots.ox.ac.uk/~vgg/software/via/
"""
from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, Instance
from ..validation.segmentations import MAX_COORDINATE, is_number
from ..validation.validation_report import abbreviate
from .data_format import (ALL, TEST_LEFT, TOO_FEW_POINTS, ReadContext, compute_box,
                          find_split_folders, match_suffix, read_start, read_text)
from .shapes import NUM_POINTS, Shapes, make_ellipse

METADATA = '_via_img_metadata'
NO_AREA = ('point', 'polyline', 'line')
CLASS_KEYS = ('class', 'label', 'name', 'category', 'type', 'object')  # common attributes
UNNAMED = 'object'  # class of regions without attributes


def is_via(path: Path) -> bool:
    """Return True for a JSON file of VIA, or a folder with one in it or in its splits."""
    return bool(_find_files(path))


def _find_files(path: Path) -> dict[str, list[Path]]:
    """Return JSON files by the split that their folder is named after."""
    if path.is_file():
        return {ALL: [path]} if _looks_like_via(path) else {}
    folders = {**find_split_folders(path)} or {ALL: path}
    files = {
        split: list(filter(_looks_like_via, sorted(folder.glob(match_suffix('.json')))))
        for split, folder in folders.items()
    }
    return {split: found for split, found in files.items() if found}


def _looks_like_via(file: Path) -> bool:
    start = read_start(file, 5000)
    return file.suffix.lower() == '.json' and (b'"_via_' in start or b'"filename"' in start
                                               and b'"regions"' in start)  # yapf: disable


def read_via(path: Path, context: ReadContext) -> Shapes:
    """Return the shapes of a file, or of the files in a folder or its splits."""
    files = _find_files(path)
    if test := files.pop('test', None):
        context.count_dropped(TEST_LEFT, count=sum(len(_read_entries(file)) for file in test))
    entries: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for split, found in files.items():
        context.tables.update(found)
        try:
            entries[split] = [(file, entry) for file in found for entry in _read_entries(file)]
        except (OSError, ValueError, RecursionError) as error:
            context.add_error(found[0], f'cannot be read: {error}')
    key = _find_class_key(region for each in entries.values() for _, entry in each
                          for region in _list_regions(entry))
    images = {
        split: [image for file, entry in each if (image := _read_image(file, entry, key, context))]
        for split, each in entries.items()
    }
    context.count_unused_images(images.values())
    return Shapes(images)


def _read_entries(file: Path) -> list[dict[str, Any]]:
    """Return the entries of all images.

    Raises:
        ValueError: If the file is not one of VIA.
    """
    content = json.loads(read_text(file))
    content = content.get(METADATA, content) if isinstance(content, dict) else content
    entries = list(content.values()) if isinstance(content, dict) else [content]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get('filename'), str):
            raise UserError(f'{file}: each image must have a filename, got {abbreviate(entry)}')
    return entries


def _list_regions(entry: dict[str, Any]) -> list[Any]:
    """Return the regions of an image: a list, or a mapping in version 1."""
    regions = entry.get('regions') or []
    return list(regions.values() if isinstance(regions, dict) else regions)


def _find_class_key(regions: Iterable[Any]) -> str | None:
    """Return the attribute that holds the class, or None if regions have no attributes."""
    keys = {
        key: None
        for region in regions if isinstance(region, dict)
        for key in region.get('region_attributes') or ()
    }
    known = [key for key in CLASS_KEYS if key in keys]
    if len(keys) > 1 and len(known) != 1:
        raise UserError(f'regions have the attributes {", ".join(keys)}: rename the one that holds '
                        'the class to "class"')
    return next(iter(known or keys), None)


def _read_image(file: Path, entry: dict[str, Any], key: str | None,
                context: ReadContext) -> AnnotatedImage | None:
    """Return an image and its regions, or None after rejecting it."""
    name = entry['filename']
    paths = [folder / name for folder in (file.parent, file.parent / 'images')]
    image = next(filter(Path.is_file, paths), None)
    if image is None:
        context.reject(file, f'its image {name} does not exist', sample=str(paths[0]))
        return None
    context.owners[image] = file
    size = context.read_size(image)
    if size is None:
        return None
    instances = []
    for number, region in enumerate(_list_regions(entry), 1):
        place = f'{name}, region {number}'
        try:
            instance = _read_region(region, key, context, context.locate(file, place))
        except ValueError as error:
            context.reject(file, str(error), place, sample=str(image))
            return None
        if instance:
            instances.append(instance)
    return AnnotatedImage(image, size, context.locate(image), instances)


def _read_region(region: Any, key: str | None, context: ReadContext,
                 location: str) -> Instance | None:
    """Return the instance of a region, or None if it has no area."""
    shape = region.get('shape_attributes') if isinstance(region, dict) else None
    if not isinstance(shape, dict):
        raise UserError(f'must have shape_attributes, got {abbreviate(region)}')
    label = _read_class((region.get('region_attributes') or {}).get(key), key)
    kind = shape.get('name')
    if kind in NO_AREA:
        context.count_dropped(f'{kind} regions, which have no area, are omitted', location)
        return None
    if kind == 'rect':
        left, top, width, height = _read_numbers(shape, 'x', 'y', 'width', 'height')
        return Instance(label, (left, top, left + width, top + height), [], location)
    if kind in ('circle', 'ellipse'):
        x, y = _read_numbers(shape, 'cx', 'cy')
        radii = _read_numbers(shape, *(['r', 'r'] if kind == 'circle' else ['rx', 'ry']))
        theta, = _read_numbers({'theta': 0} | shape, 'theta')
        points = make_ellipse((x, y), radii, theta)
        context.count_dropped(f'circles and ellipses become polygons of {NUM_POINTS} points',
                              location)
    elif kind == 'polygon':
        xs, ys = shape.get('all_points_x'), shape.get('all_points_y')
        if not isinstance(xs, list) or not isinstance(ys, list) or len(xs) != len(ys) or not all(
                is_number(side, MAX_COORDINATE) for side in (*xs, *ys)):
            raise UserError('all_points_x and all_points_y must be lists of equally many numbers, '
                            f'got {abbreviate([xs, ys])}')
        points = [list(point) for point in zip(xs, ys, strict=True)]
    else:
        raise UserError(f'has the unknown shape {abbreviate(kind)}')
    if len(points) < 3:
        context.count_dropped(TOO_FEW_POINTS, location)
        return None
    polygon = [float(side) for point in points for side in point]
    return Instance(label, compute_box([polygon]), [polygon], location)


def _read_class(value: Any, key: str | None) -> str:
    if key is None:
        return UNNAMED
    if isinstance(value, dict):  # a checkbox
        checked = [name for name, is_checked in value.items() if is_checked]
        value = checked[0] if len(checked) == 1 else value
    if not isinstance(value, str) or not value.strip():
        raise UserError(f'its attribute {key} must name the class, got {abbreviate(value)}')
    return value.strip()


def _read_numbers(shape: dict[str, Any], *keys: str) -> list[float]:
    values = [shape.get(key) for key in keys]
    if not all(is_number(value, MAX_COORDINATE) for value in values):
        raise UserError(f'{", ".join(keys)} must be numbers, got {abbreviate(values)}')
    return [float(value) for value in values if value is not None]
