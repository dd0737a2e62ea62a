"""Repairs of COCO files that need no guess.

Entries are changed in place. Each repair is counted under the location of the original entry.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..data_index import DataIndex
from ..rle import encode_segmentation, get_area, get_box
from ..validation.coco_files import (BOX, CONVERTED_FROM, FIELDS, FLAG, INTEGER, NUMBER, SIDE,
                                     SINGULAR, Entry, make_header_check)
from ..validation.image_files import describe_read_error, read_size_of_any
from ..validation.segmentations import are_numbers, find_segmentation_error, is_polygon, is_size
from ..validation.validation_report import find_repeated
from .data_format import ReadContext, compute_box


class CocoRepairer:
    """Repairs of one COCO file.

    Args:
        file: Path of the file.
        content: Lists of images, annotations and categories, changed in place.
        context: Counts repairs and skipped samples.
    """

    def __init__(self, file: Path, content: dict[str, list], context: ReadContext) -> None:
        self.file, self.content, self.context = file, content, context
        self.entries = {kind: _select_dicts(content[kind]) for kind in FIELDS}
        self.original = dict(content)  # lists of the file; changed lists are new objects
        self.has_changed = False

    def _count(self, what: str, kind: str, entry: Entry) -> None:
        is_first = what not in self.context.repairs
        self.context.count_repair(what, self._locate(kind, entry) if is_first else None)
        self.has_changed = True

    def _locate(self, kind: str, entry: Entry) -> str:
        """Return the location of an entry in the original file."""
        if CONVERTED_FROM in entry:
            return entry[CONVERTED_FROM]
        place = f'{SINGULAR[kind]} {entry["id"]}' if 'id' in entry else \
            f'{kind}[{self._indices[kind][id(entry)]}]'
        return self.context.locate(self.file, place)

    @cached_property
    def _indices(self) -> dict[str, dict[int, int]]:
        return {kind: {id(entry): index for index, entry in enumerate(self.original[kind])}
                for kind in FIELDS}  # yapf: disable

    def repair_ids(self) -> None:
        """Make IDs unique integers, and update references to them."""
        for kind, key in (('images', 'image_id'), ('categories', 'category_id')):
            self._number_ids(kind, key)
        annotations = self.entries['annotations']
        ids = [_parse_integer(entry.get('id')) for entry in annotations]
        numbers = [number for number in ids if isinstance(number, int)]
        if len(numbers) < len(ids) or 0 in numbers or find_repeated(numbers) or not all(
                map(INTEGER.holds, numbers)):
            what = 'annotation IDs that are missing, duplicated or 0: numbered from 1'
            ids = list(range(1, 1 + len(annotations)))
        else:
            what = 'annotation IDs: converted to integers'
        for entry, number in zip(annotations, ids, strict=True):
            if type(entry.get('id')) is not int or entry['id'] != number:
                self._count(what, 'annotations', entry)
                entry.setdefault(CONVERTED_FROM, self._locate('annotations', entry))
                entry['id'] = number

    def _number_ids(self, kind: str, key: str) -> None:
        """Make IDs of images or categories integers: parsed, or new ones if they are names."""
        keys = {_parse_integer(entry.get('id')) for entry in self.entries[kind]} - {None}
        names = sorted(name for name in keys if isinstance(name, str))
        first = 1 + max((number for number in keys if isinstance(number, int)), default=0)
        new = {name: number for number, name in enumerate(names, first)}
        for owner, id_key in ((kind, 'id'), ('annotations', key)):
            for entry in self.entries[owner]:
                old = entry.get(id_key)
                parsed = _parse_integer(old)
                number = new.get(parsed) if isinstance(parsed, str) else parsed
                if number is not None and type(old) in (str, float):
                    if owner == kind:
                        self._count(f'IDs of {kind}: converted to integers', owner, entry)
                        entry.setdefault(CONVERTED_FROM, self._locate(owner, entry))
                    self.has_changed = True
                    entry[id_key] = number

    def repair_sizes(self, folder: Path) -> None:
        """Complete widths and heights, and remove images that cannot be read for this."""
        unreadable = []
        for entry in self.entries['images']:
            declared, name = (entry.get('width'), entry.get('height')), entry.get('file_name')
            sides = tuple(map(_parse_integer, declared))
            repair = 'converted to integers'
            if not all(map(SIDE.holds, sides)):
                if not isinstance(name, str) or not folder.is_dir():
                    continue
                try:
                    sides, repair = read_size_of_any(folder / name), 'read from their files'
                except OSError as error:
                    unreadable.append((entry, describe_read_error(folder / name, error).message))
                    continue
            if set(map(type, declared)) != {int} or sides != declared:
                self._count(f'width and height of images: {repair}', 'images', entry)
                entry['width'], entry['height'] = sides
        self._remove_samples(unreadable)

    def repair_annotations(self) -> None:
        """Complete values of annotations from their other values, or with COCO's defaults."""
        for entry in self.entries['annotations']:
            self._repair_segmentation(entry)
            self._repair_box(entry)
            if not NUMBER.holds(entry.get('area')):
                shape = _measure_mask(entry.get('segmentation'))
                area = shape[1] if shape else None
                if area is None and BOX.holds(entry.get('bbox')):
                    area = entry['bbox'][2] * entry['bbox'][3]
                if area is not None:
                    entry['area'] = area
                    self._count('area of annotations: computed', 'annotations', entry)
            flag = entry.get('iscrowd')
            if flag is None:
                entry['iscrowd'] = 0
                self._count('iscrowd of annotations: missing, set to 0', 'annotations', entry)
            elif not FLAG.holds(flag) and (number := _parse_integer(flag)) in (0, 1):
                entry['iscrowd'] = number
                self._count('iscrowd of annotations: converted to 0 or 1', 'annotations', entry)

    def _repair_segmentation(self, entry: Entry) -> None:
        mask = entry.get('segmentation')
        if not isinstance(mask, list) or not mask:
            return
        if all(isinstance(polygon, list) for polygon in mask):
            are_points = len(mask) > 2 and all(len(p) == 2 and are_numbers(p) for p in mask)
            flat = [side for point in mask for side in point] if are_points else None
        else:
            flat = mask if are_numbers(mask) and is_polygon(mask) else None
        if flat:
            entry['segmentation'] = mask = [flat]
            self._count('flat polygons: put into a list', 'annotations', entry)
        if all(isinstance(polygon, list) for polygon in mask):
            polygons = [
                polygon for polygon in mask if is_polygon(polygon) or not are_numbers(polygon)
            ]
            if len(polygons) < len(mask):
                entry['segmentation'] = polygons
                self._count('polygons with fewer than three points: removed', 'annotations', entry)

    def _repair_box(self, entry: Entry) -> None:
        box = entry.get('bbox')
        if BOX.holds(box):
            return
        if isinstance(box, list) and len(box) == 4 and all(
                isinstance(side, str) for side in box if not NUMBER.holds(side)):
            sides = [side if NUMBER.holds(side) else _parse_number(side) for side in box]
            if BOX.holds(sides):
                entry['bbox'] = sides
                self._count('bbox of annotations: converted to numbers', 'annotations', entry)
                return
        if shape := _measure_mask(entry.get('segmentation')):
            entry['bbox'] = shape[0]
            self._count('bbox of annotations: computed from masks', 'annotations', entry)

    def remove_orphans(self, folder: Path) -> None:
        """Remove annotations without an image, and images without annotations and a file."""
        ids = {_make_key(entry.get('id')) for entry in self.entries['images']}
        annotations = self.entries['annotations']
        orphans = [
            entry for entry in annotations
            if isinstance(entry.get('image_id'), (int, str)) and entry['image_id'] not in ids
        ]
        if 2 * len(orphans) > len(annotations):
            self.context.add_error(
                self.file, f'{len(orphans)} of {len(annotations)} annotations refer to images that '
                'are not in the file: use the file that lists these images, or fix image_id')
        else:
            for entry in orphans:
                self._count('annotations of images that are not in the file: removed',
                            'annotations', entry)
        used = {_make_key(entry.get('image_id')) for entry in annotations}
        unused = [
            entry for entry in self.entries['images']
            if _make_key(entry.get('id')) not in used and isinstance(entry.get('file_name'), str)
            and folder.is_dir() and not _exists(folder / entry['file_name'])
        ]
        for entry in unused:
            self._count('images without annotations whose files do not exist: removed', 'images',
                        entry)
        self._remove('annotations', orphans)
        self._remove('images', unused)

    def remove_bad_samples(self, folder: Path, masks: bool) -> None:
        """Skip images that are unusable, or that have an unusable annotation."""
        images: list[Entry] = []
        bad: list[tuple[Entry, str]] = []
        for entry in self.entries['images']:
            wrong = [(key, field.expected) for key, field in FIELDS['images'].items()
                     if not field.holds(entry.get(key))]  # yapf: disable
            if wrong:
                bad.append((entry, '{} must be {}'.format(*wrong[0])))
            else:
                images.append(entry)
        bad += [
            (entry, each.message)
            for entry, each in make_header_check(folder, num_bands=self.context.num_bands)(images)
        ]
        by_id = {entry['id']: entry for entry in images}
        categories = {_make_key(entry.get('id')) for entry in self.entries['categories']}
        for entry in self.entries['annotations']:
            image = by_id.get(_make_key(entry.get('image_id')))
            if image and (error := _find_annotation_error(entry, image, categories, masks)):
                bad.append((image, f'{self._locate("annotations", entry)}: {error}'))
        self._remove_samples(bad)

    def _remove_samples(self, bad: Iterable[tuple[Entry, str]]) -> None:
        """Report unusable images, and remove them with their annotations."""
        images = []
        for entry, error in bad:
            place = f'image {entry.get("id")}'
            self.context.reject(self.file, error, place, sample=f'{self.file}: {place}')
            images.append(entry)
        if images:
            ids = {_make_key(entry.get('id')) for entry in images}
            self._remove('annotations', [
                entry
                for entry in self.entries['annotations'] if _make_key(entry.get('image_id')) in ids
            ])
            self._remove('images', images)
            self.has_changed = True

    def _remove(self, kind: str, entries: Sequence[Entry]) -> None:
        removed = set(map(id, entries))
        for lists in (self.content, self.entries) if removed else ():
            lists[kind] = [each for each in lists[kind] if id(each) not in removed]


def fill_masks(indices: Sequence[DataIndex], context: ReadContext) -> None:
    """Use the corners of boxes as masks if other objects have masks."""
    if not any(
            row.get('segmentation') for index in indices for row in _select_dicts(index.objects)):
        return
    for index in indices:
        if all(row.get('segmentation') for row in _select_dicts(index.objects)):
            continue
        index.detach(context.root)
        for row in _select_dicts(index.objects):
            if not row.get('segmentation') and BOX.holds(row.get('bbox')):
                left, top, width, height = row['bbox']
                right, bottom = left + width, top + height
                row['segmentation'] = [[left, top, right, top, right, bottom, left, bottom]]
                context.count_repair('objects without a mask, though others have one: corners of '
                                     'the box used as mask (detectors without masks: --boxes-only)',
                                     row.get(CONVERTED_FROM))  # yapf: disable


def align_categories(indices: Sequence[DataIndex], context: ReadContext) -> None:
    """Give two splits the same categories in the same order, if one has all of the other's."""
    for index in indices:
        if not all(
                isinstance(row, dict) and isinstance(row.get('name'), str)
                and INTEGER.holds(row.get('id')) for row in index.rows['categories']):
            return
    longest = max((index.classes for index in indices), key=len)  # training's if equal
    complete = next(index.rows['categories'] for index in indices if index.classes == longest)
    if any(
            find_repeated(index.classes) or not set(index.classes) <= set(longest)
            for index in indices):
        return
    for index in indices:
        if index.classes != longest:
            location = context.locate(index.file) if index.file else None
            index.detach(context.root)
            by_name = {row['name']: row for row in index.rows['categories']}
            first = 1 + max((row['id'] for row in by_name.values()), default=0)
            index.rows['categories'] = [
                by_name.get(row['name']) or row | dict(id=first + place)
                for place, row in enumerate(complete)
            ]
            context.count_repair('categories that are a subset of the other split or in another '
                                 'order: completed and reordered', location)  # yapf: disable


def _select_dicts(rows: list[Any]) -> list[Entry]:
    return [row for row in rows if isinstance(row, dict)]


def _find_annotation_error(entry: Entry, image: Entry, categories: set[Any],
                           masks: bool) -> str | None:
    """Return what is wrong with an annotation after all repairs, or None."""
    for key, field in FIELDS['annotations'].items():
        if not field.holds(entry.get(key)):
            return f'{key} must be {field.expected}, got {entry.get(key)!r}'
    if entry['category_id'] not in categories:
        return f'category {entry["category_id"]} does not exist'
    mask = entry.get('segmentation')
    return find_segmentation_error(mask, [image['height'], image['width']], True) \
        if masks and mask else None


def _measure_mask(mask: Any) -> tuple[list[float], float] | None:
    """Return the box (left, top, width, height) and area of a mask, or None if it is unusable."""
    if not mask or find_segmentation_error(mask, None, True):
        return None
    if isinstance(mask, dict):
        height, width = mask['size']
        if not is_size(mask['size']) or find_segmentation_error(mask, [height, width], True):
            return None
        rle = encode_segmentation(mask, (height, width))
        return list(get_box(rle)), get_area(rle)
    left, top, right, bottom = compute_box(mask)
    area = sum(cv2.contourArea(np.float32(polygon).reshape(-1, 2)) for polygon in mask)
    return [left, top, right - left, bottom - top], area


def _parse_integer(value: Any) -> int | str | None:
    """Return an ID or side as integer if it is one, a name unchanged, and otherwise None."""
    if isinstance(value, str):
        if re.fullmatch(r'0|-?[1-9]\d{0,17}', value):
            return int(value)
        number = _parse_number(value) if re.fullmatch(r'-?\d{1,15}\.0+', value) else None
        return value or None if number is None else int(number)
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if NUMBER.holds(number) else None


def _make_key(value: Any) -> Any:
    """Return a value if it is hashable, otherwise None."""
    return value if isinstance(value, (int, float, str)) else None


def _exists(path: Path) -> bool:
    """Return True if a file exists, or its name is invalid."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True
