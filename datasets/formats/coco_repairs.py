"""Repairs of COCO files: what a reader can complete without a guess is not the user's work.

Entries are changed in place. Each repair is counted, and named after the entry of the original.
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
from ..validation.coco_files import (BOX, CONVERTED_FROM, FIELDS, FLAG, NUMBER, SIDE, SINGULAR,
                                     WHOLE, check_headers)
from ..validation.image_files import image_size, reading_fault
from ..validation.segmentations import are_numbers, is_polygon, is_size, segmentation_fault
from ..validation.validation_report import find_repeated
from .instance_records import Reading, box_around

Entry = dict[str, Any]


class Repairer:
    """Repairs one COCO file.

    Args:
        file: Path of the file.
        content: Lists of images, annotations and categories, changed in place.
        reading: Dataset that the file belongs to; counts repairs and skipped samples.
    """

    def __init__(self, file: Path, content: dict[str, list], reading: Reading) -> None:
        self.file, self.content, self.reading = file, content, reading
        self.entries: dict[str, list[Entry]] = {kind: _dicts(content[kind]) for kind in FIELDS}
        self.source = reading.source(file)
        self.original = dict(content)  # lists that are not changed: others take their place
        self.has_changed = False

    def count(self, what: str, kind: str, entry: Entry) -> None:
        """Count the repair of an entry."""
        is_first = what not in self.reading.repairs
        self.reading.repair(what, self.name(kind, entry) if is_first else None)
        self.has_changed = True

    def name(self, kind: str, entry: Entry) -> str:
        """Return the place of an entry in the original file."""
        if CONVERTED_FROM in entry:
            return entry[CONVERTED_FROM]
        place = f'{SINGULAR[kind]} {entry["id"]}' if 'id' in entry else \
            f'{kind}[{self.places[kind][id(entry)]}]'
        return f'{self.source}: {place}'

    @cached_property
    def places(self) -> dict[str, dict[int, int]]:
        """Return the index of each entry in the original file, by its identity."""
        return {kind: {id(entry): place for place, entry in enumerate(self.original[kind])}
                for kind in FIELDS}  # yapf: disable

    def repair_ids(self) -> None:
        """Make IDs integers, each of one annotation, and let references follow them."""
        for kind, key in (('images', 'image_id'), ('categories', 'category_id')):
            self._number_ids(kind, key)
        annotations = self.entries['annotations']
        ids = [_parse_integer(entry.get('id')) for entry in annotations]
        numbers = [number for number in ids if isinstance(number, int)]
        if len(numbers) < len(ids) or 0 in numbers or find_repeated(numbers) or not all(
                map(WHOLE.holds, numbers)):
            what = 'IDs of annotations, missing, used twice or 0: numbered from 1'
            ids = list(range(1, 1 + len(annotations)))
        else:
            what = 'IDs of annotations: written as integers'
        for entry, number in zip(annotations, ids, strict=True):
            if type(entry.get('id')) is not int or entry['id'] != number:
                self.count(what, 'annotations', entry)
                entry.setdefault(CONVERTED_FROM, self.name('annotations', entry))
                entry['id'] = number

    def _number_ids(self, kind: str, key: str) -> None:
        """Make IDs of images or categories integers: their own, or new ones if they are names."""
        keys = {_parse_integer(entry.get('id')) for entry in self.entries[kind]} - {None}
        names = sorted(name for name in keys if isinstance(name, str))
        first = 1 + max((number for number in keys if isinstance(number, int)), default=0)
        new = {name: number for number, name in enumerate(names, first)}
        for owner, id_key in ((kind, 'id'), ('annotations', key)):
            for entry in self.entries[owner]:
                was = entry.get(id_key)
                found = _parse_integer(was)
                number = new.get(found) if isinstance(found, str) else found
                if number is not None and type(was) in (str, float):
                    if owner == kind:
                        self.count(f'IDs of {kind}: written as integers', owner, entry)
                        entry.setdefault(CONVERTED_FROM, self.name(owner, entry))
                    self.has_changed = True
                    entry[id_key] = number

    def repair_sizes(self, folder: Path) -> None:
        """Complete widths and heights; report the images that cannot be read for it."""
        unreadable = []
        for entry in self.entries['images']:
            said, name = (entry.get('width'), entry.get('height')), entry.get('file_name')
            sides = tuple(map(_parse_integer, said))
            what = 'written as integers'
            if not all(map(SIDE.holds, sides)):
                if not isinstance(name, str) or not folder.is_dir():
                    continue
                try:
                    sides, what = image_size(folder / name), 'read from their files'
                except OSError as error:
                    unreadable.append((entry, reading_fault(folder / name, error).message))
                    continue
            if set(map(type, said)) != {int} or sides != said:
                self.count(f'width and height of images: {what}', 'images', entry)
                entry['width'], entry['height'] = sides
        self.remove_samples(unreadable)

    def repair_annotations(self) -> None:
        """Complete what other values of an annotation, or COCO's defaults, tell."""
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
                    self.count('area of annotations: computed', 'annotations', entry)
            if entry.get('iscrowd') is None or not FLAG.holds(entry['iscrowd']):
                flag = 0 if entry.get('iscrowd') is None else _parse_integer(entry['iscrowd'])
                if flag in (0, 1):
                    what = 'missing, now 0' if entry.get('iscrowd') is None else 'written as 0 or 1'
                    entry['iscrowd'] = flag
                    self.count(f'iscrowd of annotations: {what}', 'annotations', entry)

    def _repair_segmentation(self, entry: Entry) -> None:
        mask = entry.get('segmentation')
        if not isinstance(mask, list) or not mask:
            return
        if all(isinstance(polygon, list) for polygon in mask):
            is_points = len(mask) > 2 and all(len(p) == 2 and are_numbers(p) for p in mask)
            flat = [side for point in mask for side in point] if is_points else None
        else:
            flat = mask if are_numbers(mask) and is_polygon(mask) else None
        if flat:
            entry['segmentation'] = mask = [flat]
            self.count('flat polygons: put into a list', 'annotations', entry)
        if all(isinstance(polygon, list) for polygon in mask):
            kept = [polygon for polygon in mask if is_polygon(polygon) or not are_numbers(polygon)]
            if len(kept) < len(mask):
                entry['segmentation'] = kept
                self.count('polygons of fewer than three points: removed', 'annotations', entry)

    def _repair_box(self, entry: Entry) -> None:
        box = entry.get('bbox')
        if BOX.holds(box):
            return
        if isinstance(box, list) and len(box) == 4 and all(
                isinstance(side, str) for side in box if not NUMBER.holds(side)):
            sides = [side if NUMBER.holds(side) else _parse_number(side) for side in box]
            if BOX.holds(sides):
                entry['bbox'] = sides
                self.count('bbox of annotations: written as numbers', 'annotations', entry)
                return
        if shape := _measure_mask(entry.get('segmentation')):
            entry['bbox'] = shape[0]
            self.count('bbox of annotations: computed from masks', 'annotations', entry)

    def remove_orphans(self, folder: Path) -> None:
        """Remove annotations without an image, and images without annotations and a file."""
        ids = {_key(entry.get('id')) for entry in self.entries['images']}
        orphans = [
            entry for entry in self.entries['annotations']
            if isinstance(entry.get('image_id'), (int, str)) and entry['image_id'] not in ids
        ]
        if 2 * len(orphans) > len(self.entries['annotations']):
            self.reading.fault(
                self.file, f'{len(orphans)} of {len(self.entries["annotations"])} annotations are '
                'of images that the file does not have: it is not the file of these images, or '
                'its image_id are wrong')
        else:
            for entry in orphans:
                self.count('annotations of images that the file does not have: removed',
                           'annotations', entry)
        used = {_key(entry.get('image_id')) for entry in self.entries['annotations']}
        unused = [
            entry for entry in self.entries['images']
            if _key(entry.get('id')) not in used and isinstance(entry.get('file_name'), str)
            and folder.is_dir() and not _exists(folder / entry['file_name'])
        ]
        for entry in unused:
            self.count('images without annotations whose files are missing: removed', 'images',
                       entry)
        self._remove('annotations', orphans)
        self._remove('images', unused)

    def remove_bad_samples(self, folder: Path, masks: bool) -> None:
        """Skip the images that cannot be used, or of which an annotation cannot."""
        images: list[Entry] = []
        found: list[tuple[Entry, str]] = []
        for entry in self.entries['images']:
            wrong = [
                key for key, field in FIELDS['images'].items() if not field.holds(entry.get(key))
            ]
            if wrong:
                found.append((entry, f'{wrong[0]} must be {FIELDS["images"][wrong[0]].wanted}'))
            else:
                images.append(entry)
        found += [(entry, fault.message) for entry, fault in check_headers(folder)(images)]
        by_id = {entry['id']: entry for entry in images}
        categories = {_key(entry.get('id')) for entry in self.entries['categories']}
        for entry in self.entries['annotations']:
            image = by_id.get(_key(entry.get('image_id')))
            if image and (fault := _annotation_fault(entry, image, categories, masks)):
                found.append((image, f'{self.name("annotations", entry)}: {fault}'))
        self.remove_samples(found)

    def remove_samples(self, found: Iterable[tuple[Entry, str]]) -> None:
        """Report images that cannot be used, and remove them with their annotations."""
        bad = []
        for entry, fault in found:
            place = f'image {entry.get("id")}'
            self.reading.reject(self.file, fault, place, sample=f'{self.file}: {place}')
            bad.append(entry)
        if bad:
            ids = {_key(entry.get('id')) for entry in bad}
            self._remove('annotations', [
                entry for entry in self.entries['annotations'] if _key(entry.get('image_id')) in ids
            ])
            self._remove('images', bad)
            self.has_changed = True

    def _remove(self, kind: str, entries: Sequence[Entry]) -> None:
        gone = set(map(id, entries))
        if gone:
            self.content[kind] = [each for each in self.content[kind] if id(each) not in gone]
            self.entries[kind] = [each for each in self.entries[kind] if id(each) not in gone]


def fill_masks(indices: Sequence[DataIndex], reading: Reading) -> None:
    """Give boxes the mask of their four corners if other objects have masks."""
    if not any(row.get('segmentation') for index in indices for row in _dicts(index.objects)):
        return
    for index in indices:
        if all(row.get('segmentation') for row in _dicts(index.objects)):
            continue
        index.detach(reading.root)
        for row in _dicts(index.objects):
            if not row.get('segmentation') and BOX.holds(row.get('bbox')):
                left, top, width, height = row['bbox']
                right, bottom = left + width, top + height
                row['segmentation'] = [[left, top, right, top, right, bottom, left, bottom]]
                reading.repair('objects without a mask beside others with one: the corners of '
                               'their box are the mask (--boxes trains boxes alone)',
                               row.get(CONVERTED_FROM))  # yapf: disable


def _dicts(rows: list[Any]) -> list[Entry]:
    return [row for row in rows if isinstance(row, dict)]


def align_categories(indices: Sequence[DataIndex], reading: Reading) -> None:
    """Give two splits the same categories in the same order, if one has all of the other's."""
    for index in indices:
        if not all(
                isinstance(row, dict) and isinstance(row.get('name'), str)
                and WHOLE.holds(row.get('id')) for row in index.rows['categories']):
            return
    longest = max((index.classes for index in indices), key=len)  # of equals the first, training
    if any(
            find_repeated(index.classes) or not set(index.classes) <= set(longest)
            for index in indices):
        return
    for index in indices:
        if index.classes != longest:
            source = reading.source(index.file) if index.file else None
            index.detach(reading.root)
            by_name = {row['name']: row for row in index.rows['categories']}
            first = 1 + max((row['id'] for row in by_name.values()), default=0)
            index.rows['categories'] = [
                by_name.get(name) or dict(id=first + place, name=name)
                for place, name in enumerate(longest)
            ]
            reading.repair('categories, a part or another order of those of the other split: '
                           'completed and put into its order', source)  # yapf: disable


def _annotation_fault(entry: Entry, image: Entry, categories: set[Any], masks: bool) -> str | None:
    """Return what is wrong with an annotation after all repairs, if anything."""
    for key, field in FIELDS['annotations'].items():
        if not field.holds(entry.get(key)):
            return f'{key} must be {field.wanted}, got {entry.get(key)!r}'
    if entry['category_id'] not in categories:
        return f'there is no category {entry["category_id"]}'
    mask = entry.get('segmentation')
    return segmentation_fault(mask, [image['height'], image['width']], True) \
        if masks and mask else None


def _measure_mask(mask: Any) -> tuple[list[float], float] | None:
    """Return box (left, top, width, height) and area of a mask; None if it is unusable."""
    if not mask or segmentation_fault(mask, None, True):
        return None
    if isinstance(mask, dict):
        height, width = mask['size']
        if not is_size(mask['size']) or segmentation_fault(mask, [height, width], True):
            return None
        code = encode_segmentation(mask, (height, width))
        return list(get_box(code)), get_area(code)
    left, top, right, bottom = box_around(mask)
    area = sum(cv2.contourArea(np.float32(polygon).reshape(-1, 2)) for polygon in mask)
    return [left, top, right - left, bottom - top], area


def _parse_integer(value: Any) -> int | str | None:
    """Return an ID or side as an integer where it is one, a name as it is, and else None."""
    if isinstance(value, str):
        if re.fullmatch(r'0|-?[1-9]\d{0,17}', value):
            return int(value)
        number = _parse_number(value) if re.fullmatch(r'-?\d{1,15}\.0+', value) else None
        return value or None if number is None else int(number)
    if type(value) is float and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _parse_number(text: str) -> float | None:
    """Return the finite number that a text holds; None if it holds none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if NUMBER.holds(number) else None


def _key(value: Any) -> Any:
    """Return a value if it can be looked up."""
    return value if isinstance(value, (int, float, str)) else None


def _exists(path: Path) -> bool:
    """Return True if there is such a file, or its name cannot be looked up at all."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True
