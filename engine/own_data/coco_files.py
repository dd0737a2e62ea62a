"""A COCO file of one's own: what is in it, and all that is wrong with it."""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..image_depths import Depths
from .files import Report, json_layout, other_format, repeated, shown
from .image_files import MOST_PIXELS, image_size
from .segmentations import is_number, is_polygon, segmentation_fault

CONVERTED_FROM = 'converted_from'  # key of entries that a conversion made: file and place
LARGEST_ID = 2**53  # beyond, programs that read numbers as floats confuse ids


class Field(NamedTuple):
    """What a value must be, and how that is called."""
    holds: Callable[[Any], bool]
    wanted: str


WHOLE = Field(lambda value: type(value) is int and abs(value) <= LARGEST_ID, 'a whole number')
SIDE = Field(lambda value: type(value) is int and 0 < value <= MOST_PIXELS,
             'a whole number of pixels')
TEXT = Field(lambda value: isinstance(value, str) and bool(value), 'text')
NUMBER = Field(is_number, 'a number of pixels')
FLAG = Field(lambda value: type(value) in (int, bool) and value in (0, 1), '0 or 1')
BOX = Field(
    lambda value: isinstance(value, list) and len(value) == 4 and all(map(is_number, value)),
    '[left, top, width, height]')
FIELDS = dict(
    images=dict(id=WHOLE, file_name=TEXT, width=SIDE, height=SIDE),
    categories=dict(id=WHOLE, name=TEXT),
    annotations=dict(
        id=WHOLE, image_id=WHOLE, category_id=WHOLE, bbox=BOX, area=NUMBER, iscrowd=FLAG))
SINGULAR = dict(images='image', categories='category', annotations='annotation')


@dataclass
class Instances:
    """What one COCO file says."""
    classes: dict[str, int]  # name -> number of annotations that train, in the file's order
    images: dict[int, dict]  # id -> entry
    annotated: dict[int, set[str]]  # id of an image -> classes of its annotations, trained or not

    def restricted(self, classes: Collection[str]) -> Instances:
        """The same with some of its classes alone."""
        kept = {name: count for name, count in self.classes.items() if name in classes}
        annotated = {image: names & kept.keys() for image, names in self.annotated.items()}
        return Instances(kept, self.images, {i: names for i, names in annotated.items() if names})


def load_coco(ann_file: Path, report: Report) -> dict[str, list] | None:
    """The lists of a COCO file, whatever they hold; None if it is no such file."""
    if what := other_format(ann_file):
        report.fault(f"{ann_file} is {what}. --coco takes COCO's JSON, a file for training and one "
                     'for validation. --data takes other forms')
        return None
    try:
        source = ann_file.read_bytes()
        if source.startswith(b'\xef\xbb\xbf'):
            raise ValueError('it starts with a byte order mark, at which pycocotools stops')
        content = json.loads(source.decode())
    except (OSError, ValueError, RecursionError) as error:
        report.fault(f'{ann_file} cannot be read: {error}')
        return None
    if not isinstance(content, dict) or not content.keys() >= FIELDS.keys():
        report.fault(f"{ann_file} is not in COCO's form: it needs {', '.join(FIELDS)}, it is "
                     f'{json_layout(content)}')
        return None
    wrong = [key for key in FIELDS if not isinstance(content[key], list)]
    for key in wrong:
        report.fault(f'{ann_file}: {key} must be a list, got {shown(content[key])}')
    if wrong:
        return None
    return {key: content[key] for key in FIELDS}


def check_instances(ann_file: Path,
                    content: dict[str, list],
                    folder: Path,
                    report: Report,
                    *,
                    depths: Depths | None = None,
                    masks: bool = True,
                    polygons_alone: bool = False,
                    evaluated: bool = False) -> Instances:
    """Look at everything in a COCO file and at the headers of its images.

    Args:
        ann_file: The file, which faults name.
        content: What it holds, from :func:`load_coco`.
        folder: What its file names are in.
        report: Takes what is wrong.
        depths: Takes what images have beyond three channels of 8 bits.
        masks: Whether segmentations are used.
        polygons_alone: Whether an RLE is left out of training.
        evaluated: Whether it is the file to evaluate with.
    """
    whole, known = {}, {}
    for kind, fields in FIELDS.items():
        whole[kind], known[kind] = whole_entries(content[kind], kind, fields, ann_file, report)
    for name in repeated(category['name'] for category in whole['categories']):
        report.fault(f'{ann_file}: categories: more than one is named {name!r}')
    for name in repeated(image['file_name'] for image in whole['images']):
        report.remark(f'{ann_file}: images: {name} stands there more than once')
    if not os.path.isdir(folder):
        report.fault(f'--images: {folder} is no folder')
    else:
        for entry in whole['images']:
            for text in _image_faults(entry, folder, depths):
                report.fault(f'{_place(ann_file, "images", entry)}: {text}')

    images = {image['id']: image for image in whole['images']}
    names = {category['id']: category['name'] for category in whole['categories']}
    counts = dict.fromkeys(names.values(), 0)
    annotated: dict[int, set[str]] = {}
    for annotation in whole['annotations']:
        image = images.get(annotation['image_id'])
        name = names.get(annotation['category_id'])
        faults = [
            f'there is no {key} {annotation[f"{key}_id"]}'
            for key, kind in (('image', 'images'), ('category', 'categories'))
            if annotation[f'{key}_id'] not in known[kind]
        ]
        faults += _annotation_faults(annotation, image, masks, evaluated)
        for text in faults:
            report.fault(f'{_place(ann_file, "annotations", annotation)}: {text}')
        if faults or image is None or name is None:
            continue
        annotated.setdefault(image['id'], set()).add(name)
        remarks, trains = _remarks(annotation, image, masks, polygons_alone)
        for text in remarks:
            report.remark(f'{_place(ann_file, "annotations", annotation)}: {text}')
        counts[name] += trains
    return Instances(counts, images, annotated)


def _place(ann_file: Path, kind: str, entry: dict[str, Any]) -> str:
    """Where an entry stands, or what it was converted from."""
    source = entry.get(CONVERTED_FROM)
    return source if isinstance(source, str) else f'{ann_file}: {SINGULAR[kind]} {entry["id"]}'


def whole_entries(entries: list, kind: str, fields: dict[str, Field], ann_file: Path,
                  report: Report) -> tuple[list[dict], set[int]]:
    """The entries whose fields are as they must be, and the ids of all."""
    whole, ids = [], []
    for index, entry in enumerate(entries):
        has_id = isinstance(entry, dict) and WHOLE.holds(entry.get('id'))
        where = f'{SINGULAR[kind]} {entry["id"]}' if has_id else f'{kind}[{index}]'
        if not isinstance(entry, dict):
            report.fault(f'{ann_file}: {where} must have {", ".join(fields)}, got {shown(entry)}')
            continue
        if has_id:
            ids.append(entry['id'])
        missing = [key for key in fields if key not in entry]
        if missing:
            report.fault(f'{ann_file}: {where} has no {", ".join(missing)}')
        wrong = [
            key for key, field in fields.items() if key in entry and not field.holds(entry[key])
        ]
        for key in wrong:
            report.fault(f'{ann_file}: {where}: {key} must be {fields[key].wanted}, got '
                         f'{shown(entry[key])}')
        if not missing and not wrong:
            whole.append(entry)
    for number in repeated(ids):
        report.fault(f'{ann_file}: {SINGULAR[kind]} {number} stands there more than once')
    return whole, set(ids)


def _image_faults(image: dict, folder: Path, depths: Depths | None) -> Iterator[str]:
    path, said = folder / image['file_name'], (image['width'], image['height'])
    try:
        found = image_size(path, depths)
    except FileNotFoundError:
        yield f'there is no {path}'
    except OSError as error:
        yield f'{path} cannot be read: {error}'
    else:
        if found != said:
            turned = ' (turned as its EXIF data say)' if found == said[::-1] else ''
            yield (f'{path} has {found[0]} x {found[1]} pixels{turned}, the file says {said[0]} x '
                   f'{said[1]}')


def _annotation_faults(annotation: dict, image: dict | None, masks: bool,
                       evaluated: bool) -> Iterator[str]:
    if annotation['id'] == 0 and evaluated:
        yield 'ids must not be 0, which COCO\'s evaluation takes for "not matched": --data ' \
              'renumbers them'
    if not masks:
        return
    mask = annotation.get('segmentation')
    if not mask:
        yield 'has no segmentation (--boxes trains boxes alone)'
    else:
        size = [image['height'], image['width']] if image else None
        if fault := segmentation_fault(mask, size, evaluated):
            yield fault


def _remarks(annotation: dict, image: dict, masks: bool,
             polygons_alone: bool) -> tuple[list[str], bool]:
    """What mmdet does with a sound annotation in silence, and whether it trains with it."""
    left, top, width, height = box = annotation['bbox']
    mask = annotation.get('segmentation') if masks else None
    polygons = [is_polygon(polygon) for polygon in mask] if isinstance(mask, list) else [True]
    why = None
    if annotation.get('ignore'):
        why = 'it is marked to be ignored'
    elif width < 1 or height < 1 or annotation['area'] <= 0:
        why = f'empty, box {box}, area {annotation["area"]}'
    elif min(left + width, top + height) <= 0 or left >= image['width'] or top >= image['height']:
        why = f'box {box} lies outside its image of {image["width"]} x {image["height"]}'
    elif not any(polygons):
        why = 'no polygon of at least three points'
    elif polygons_alone and isinstance(mask, dict) and not annotation['iscrowd']:
        why = 'its segmentation is an RLE, and this recipe loads polygons alone: set ' \
              'poly2mask=True in a copy of it'
    if why:
        return [f'left out of training: {why}'], False
    remarks = []
    if not all(polygons):
        remarks.append(f'{polygons.count(False)} of its polygons are left out of training: they '
                       'do not have three points or more')
    beyond = max(-left, -top, left + width - image['width'], top + height - image['height'])
    if beyond > 1:
        remarks.append(f'box {box} reaches {beyond:.1f} pixels out of its image')
    return remarks, not annotation['iscrowd']
