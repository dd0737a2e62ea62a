"""JSON files of the VGG Image Annotator (VIA), versions 1 and 2: exports and projects.

https://www.robots.ox.ac.uk/~vgg/software/via/
"""
from __future__ import annotations

import json
import mmap
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, Instance
from ..validation.segmentations import MAX_COORDINATE, is_number
from ..validation.validation_report import abbreviate
from .data_format import (ALL, TEST_LEFT, TOO_FEW_POINTS, ReadContext, compute_box,
                          find_split_folders, match_suffix, read_start, read_text)
from .shapes import NUM_POINTS, SPECIAL, Shapes, make_ellipse

METADATA, SETTINGS = '_via_img_metadata', '_via_settings'
KEYS = (b'"file_attributes"', b'"regions"')  # of each image; captions can precede the latter
NO_AREA = ('point', 'polyline', 'line')
CLASS_KEYS = ('class', 'label', 'name', 'category', 'type', 'object')  # common attributes
UNNAMED = 'object'  # class of regions without attributes, unless the user names one


@dataclass
class _File:
    """A file of VIA."""
    path: Path
    entries: list[dict[str, Any]]  # one per image
    folders: list[Path]  # that images are searched in
    class_key: str | None  # attribute that holds the class, or None if regions have no attributes


def is_via(path: Path) -> bool:
    """Return True for a JSON file of VIA, or a folder with one in it or in its splits."""
    return bool(_find_files(path))


def _find_files(path: Path) -> dict[str, list[Path]]:
    """Return JSON files by the split that their folder is named after."""
    if path.is_file():
        return {ALL: [path]} if _looks_like_via(path) else {}
    files = {split: _list_files(folder) for split, folder in find_split_folders(path).items()}
    files = {split: found for split, found in files.items() if found}
    if not files and (found := _list_files(path)):
        return {ALL: found}
    return files


def _list_files(folder: Path) -> list[Path]:
    return list(filter(_looks_like_via, sorted(folder.glob(match_suffix('.json')))))


def _looks_like_via(file: Path) -> bool:
    if file.suffix.lower() != '.json' or not read_start(file).lstrip(BOM_UTF8 +
                                                                     b' \r\n').startswith(b'{'):
        return False
    try:
        with file.open('rb') as handle, mmap.mmap(
                handle.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return all(content.find(key) >= 0 for key in KEYS)
    except (OSError, ValueError):  # ValueError if it is empty
        return False


def read_via(path: Path, context: ReadContext) -> Shapes:
    """Return the shapes of a file, or of the files in a folder or its splits."""
    paths = _find_files(path)
    if test := paths.pop('test', None):
        quiet = context.ignore_errors()
        counts = [len(file.entries) for each in test if (file := _read_file(each, quiet))]
        context.count_dropped(TEST_LEFT, count=sum(counts))
    images = {
        split: [
            image for each in found if (file := _read_file(each, context)) for entry in file.entries
            if (image := _read_image(file, entry, context))
        ]
        for split, found in paths.items()
    }
    later = context.paths[context.paths.index(path) + 1:] if path in context.paths else ()
    if path.is_dir() or path.parent not in [each.parent for each in later]:
        context.count_unused_images(images.values())  # other files of the folder list the rest
    return Shapes(images)


def _read_file(path: Path, context: ReadContext) -> _File | None:
    """Return the content of a file, or None after reporting an error."""
    context.tables.add(path)
    try:
        content = json.loads(read_text(path))
        entries = list(content.get(METADATA, content).values())
        for entry in entries:
            if not isinstance(entry['filename'], str):
                raise UserError(f'each filename must be a string, got {abbreviate(entry)}')
            _list_regions(entry)
        core = (content.get(SETTINGS) or {}).get('core') or {}
        folders = [
            path.parent, path.parent / 'images',
            path.parent / PureWindowsPath(str(core.get('default_filepath', ''))).as_posix()
        ]
        key = _find_class_key(entries)
        if key is not None:
            context.report.add_result(f'{path}: the attribute {key!r} of regions is their class')
        return _File(path, entries, folders, key)
    except UserError as error:
        context.add_error(path, str(error))
        return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        context.add_error(path, f'cannot be read: {error!r}')
        return None


def _list_regions(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the regions of an image: a list, or a mapping in version 1.

    Raises:
        ValueError: If they are something else.
    """
    regions = entry.get('regions') or []
    regions = list(regions.values()) if isinstance(regions, dict) else regions
    if not isinstance(regions, list) or not all(
            isinstance(region, dict) and isinstance(region.get('shape_attributes'), dict)
            and isinstance(region.get('region_attributes', {}), dict) for region in regions):
        raise UserError('regions must have shape_attributes and region_attributes, got '
                        f'{abbreviate(regions)}')
    return regions


def _find_class_key(entries: Iterable[dict[str, Any]]) -> str | None:
    """Return the attribute that holds the class, or None if regions have no attributes."""
    keys = {
        key: None
        for entry in entries
        for region in _list_regions(entry)
        for key in region.get('region_attributes', ())
    }
    known = [key for key in CLASS_KEYS if key in keys]
    if len(keys) > 1 and len(known) != 1:
        raise UserError(f'regions have the attributes {", ".join(keys)}: rename the one that holds '
                        'the class to "class" in VIA')
    return next(iter(known or keys), None)


def _find_image(name: str, folders: Iterable[Path]) -> Path | None:
    """Return an image that is named relative to one of some folders, else by its last part."""
    relative = PureWindowsPath(name)  # accepts both separators
    with suppress(OSError):  # a name that is too long, such as a data URL
        for each in (relative.as_posix(), relative.name):
            for folder in folders:
                if (folder / each).is_file():
                    return folder / each
    return None


def _read_image(file: _File, entry: dict[str, Any], context: ReadContext) -> AnnotatedImage | None:
    """Return an image and its regions, or None after rejecting it."""
    name = entry['filename']
    image = _find_image(name, file.folders)
    if image is None:
        places = ' or '.join(dict.fromkeys(map(str, file.folders)))
        context.reject(file.path, f'its image {abbreviate(name)} does not exist in {places}',
                       sample=f'{file.path}: {name}')  # yapf: disable
        return None
    if image in context.owners:
        context.add_error(file.path, f'{context.owners[image]} also annotates {image}: remove one '
                          'of the entries')  # yapf: disable
        return None
    context.owners[image] = file.path
    size = context.read_size(image)
    if size is None:
        return None
    regions, instances = _list_regions(entry), []
    if not regions:
        context.count_dropped('images without regions count as images without objects',
                              context.locate(file.path, name))
    for number, region in enumerate(regions, 1):
        place = f'{name}, region {number}'
        try:
            instance = _read_region(region, file.class_key, context,
                                    context.locate(file.path, place))
        except ValueError as error:
            context.reject(file.path, str(error), place, sample=str(image))
            return None
        if instance:
            instances.append(instance)
    return AnnotatedImage(image, size, context.locate(image), instances)


def _read_region(region: dict[str, Any], key: str | None, context: ReadContext,
                 location: str) -> Instance | None:
    """Return the instance of a region, or None if it has no area."""
    shape, attributes = region['shape_attributes'], region.get('region_attributes', {})
    label = _read_class(attributes.get(key), key, context.classes)
    if len(attributes) > 1:
        context.count_dropped('attributes of regions other than their class are dropped', location)
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


def _read_class(value: Any, key: str | None, classes: Sequence[str] | None) -> str:
    if key is None:
        names = [name for name in classes or () if name not in SPECIAL]
        return names[0] if len(names) == 1 else UNNAMED
    if isinstance(value, dict):  # a checkbox
        checked = [name for name, is_checked in value.items() if is_checked]
        value = checked[0] if len(checked) == 1 else value
    if not isinstance(value, str) or not value.strip():
        raise UserError(f'has no class: its attribute {key} is {abbreviate(value)}')
    return value.strip()


def _read_numbers(shape: dict[str, Any], *keys: str) -> list[float]:
    values = [shape.get(key) for key in keys]
    if not all(is_number(value, MAX_COORDINATE) for value in values):
        raise UserError(f'{", ".join(keys)} must be numbers, got {abbreviate(values)}')
    return [float(value) for value in values if value is not None]
