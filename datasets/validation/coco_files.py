"""Validation of COCO files."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.common.errors import UserError
from colonnade.datasets.gc_control import pause_gc
from colonnade.settings.findings import Finding
from colonnade.settings.rules import EFFECTS, Effect

from ..bit_depth import ImageDepths
from .image_files import MAX_PIXELS, check_header
from .segmentations import find_segmentation_error, is_number, is_polygon, is_size
from .validation_report import (Report, abbreviate, describe_json, describe_other_format,
                                find_repeated)

CONVERTED_FROM = 'converted_from'  # key of converted entries: file and location
MAX_ID = 2**53  # programs that parse numbers as floats confuse larger IDs
Entry = dict[str, Any]
#: checks images, and yields the entries that have a problem
ImageCheck = Callable[[list[Entry]], Iterable[tuple[Entry, Finding]]]


class Field(NamedTuple):
    """Requirement of a value, and its description for messages."""
    holds: Callable[[Any], bool]
    expected: str


INTEGER = Field(lambda value: type(value) is int and abs(value) <= MAX_ID, 'an integer')
SIDE = Field(lambda value: type(value) is int and 0 < value <= MAX_PIXELS,
             'an integer number of pixels')
TEXT = Field(lambda value: isinstance(value, str) and bool(value), 'a string')
NUMBER = Field(is_number, 'a number of pixels')
FLAG = Field(lambda value: type(value) in (int, bool) and value in (0, 1), '0 or 1')
BOX = Field(
    lambda value: isinstance(value, list) and len(value) == 4 and all(map(is_number, value)),
    '[left, top, width, height]')
FIELDS = dict(
    images=dict(id=INTEGER, file_name=TEXT, width=SIDE, height=SIDE),
    categories=dict(id=INTEGER, name=TEXT),
    annotations=dict(
        id=INTEGER, image_id=INTEGER, category_id=INTEGER, bbox=BOX, area=NUMBER, iscrowd=FLAG))
SINGULAR = dict(images='image', categories='category', annotations='annotation')


@dataclass
class Instances:
    """Content of a COCO file."""
    classes: dict[str, int]  # name -> number of annotations to train on, in the file's order
    images: dict[int, Entry]  # ID -> entry
    annotated: dict[int, set[str]]  # image ID -> classes of its annotations, trained or not

    def select_classes(self, classes: Collection[str]) -> Instances:
        """Return the content with some of its classes only."""
        selected = {name: count for name, count in self.classes.items() if name in classes}
        annotated = {image: names & selected.keys() for image, names in self.annotated.items()}
        return Instances(selected, self.images, {
            image: names
            for image, names in annotated.items() if names
        })


def load_coco(ann_file: Path,
              report: Report,
              *,
              needs_annotations: bool = True,
              accepts_bom: bool = False) -> dict[str, list] | None:
    """Return the lists of a COCO file with any content, or None if it is not one.

    Args:
        needs_annotations: Whether annotations are required, as for all but test images.
        accepts_bom: Whether to skip a byte order mark, because the file will be rewritten.
    """

    def add_error(text: str) -> None:
        report.add(Finding('unreadable-annotations', text, (str(ann_file), )))

    if description := describe_other_format(ann_file):
        add_error(f'{ann_file} is {description}. --coco expects two COCO files, for training and '
                  'validation; pass other formats with --data')
        return None
    try:
        content = load_json(ann_file, accepts_bom=accepts_bom)
    except (OSError, ValueError, RecursionError) as error:
        add_error(f'{ann_file} cannot be read: {error}')
        return None
    if isinstance(content, dict) and not needs_annotations:
        content.setdefault('annotations', [])
    if not isinstance(content, dict) or not content.keys() >= FIELDS.keys():
        add_error(f'{ann_file} is not in COCO format: expected {", ".join(FIELDS)}, got '
                  f'{describe_json(content)}')
        return None
    wrong = [key for key in FIELDS if not isinstance(content[key], list)]
    for key in wrong:
        add_error(f'{ann_file}: {key} must be a list, got {abbreviate(content[key])}')
    return None if wrong else {key: content[key] for key in FIELDS}


def load_json(path: Path, *, accepts_bom: bool = False) -> Any:
    """Return the content of a UTF-8 JSON file."""
    text = path.read_text(encoding='utf-8-sig' if accepts_bom else 'utf-8')
    if text.startswith('\ufeff'):
        raise UserError('it starts with a byte order mark, which pycocotools cannot read')
    with pause_gc():
        return json.loads(text)


@dataclass(frozen=True)
class Usage:
    """Use of a COCO file."""
    masks: bool = True  # whether segmentations are used
    polygons_only: bool = False  # whether training omits annotations with an RLE
    evaluated: bool = False  # whether it is used for evaluation
    needs_iscrowd: bool = False  # whether that evaluation fails without ``iscrowd``
    classes: tuple[str, ...] | None = None  # names of the used categories; None for all
    scores_masks: bool = True  # whether that evaluation compares masks
    is_panoptic: bool = False  # whether annotations are panoptic segments, see panoptic_files

    @property
    def scores_polygons(self) -> bool:
        """True if pycocotools evaluates with its masks."""
        return self.evaluated and self.scores_masks

    def has_class(self, name: Any) -> bool:
        """Return True if a category is used."""
        return not self.classes or name in self.classes


def make_header_check(folder: Path,
                      depths: ImageDepths | None = None,
                      *,
                      num_bands: int | None = None) -> ImageCheck:
    """Return a check of the headers of images in a folder."""

    def check(entries: list[Entry]) -> Iterator[tuple[Entry, Finding]]:
        for entry in entries:
            path = folder / entry['file_name']
            if finding := check_header(path, get_size(entry), depths, num_bands=num_bands):
                yield entry, finding

    return check


def get_size(image: Entry) -> tuple[int, int]:
    """Return the width and height of an image's entry."""
    return image['width'], image['height']


def check_instances(ann_file: Path,
                    content: dict[str, list],
                    report: Report,
                    *,
                    check_images: ImageCheck | None = None,
                    usage: Usage | None = None) -> Instances:
    """Check all entries of a COCO file, and its images.

    Args:
        check_images: Check of the images; None skips them.
        usage: Use of the file. Defaults to training with masks.
    """
    usage = usage or Usage()
    valid: dict[str, list[Entry]] = {}
    known: dict[str, set[int]] = {}
    for kind in FIELDS:
        valid[kind], known[kind] = find_valid_entries(content[kind], kind, ann_file, report, known,
                                                      usage)
    for kind in FIELDS:
        if number := len(content[kind]) - len(valid[kind]):
            text = f'{ann_file}: {number} of {len(content[kind])} {kind} have missing or wrong ' \
                   'values, and were not checked further'
            report.add(Finding('skipped-check', text, (str(ann_file), )))
    kinds_without_ids = {kind for kind in FIELDS if not all(map(_has_id, content[kind]))}
    for name in find_repeated(category['name'] for category in valid['categories']):
        text = f'{ann_file}: categories: {name!r} is duplicated'
        finding = Finding('repeated-category', text, (str(ann_file), ))
        report.add(finding if usage.has_class(name) else replace(finding, effect='none'))
    for name in find_repeated(image['file_name'] for image in valid['images']):
        report.add(Finding('repeated-file', f'{ann_file}: images: {name} is duplicated', (name, )))
    for entry, finding in check_images(valid['images']) if check_images else ():
        report.add(_locate_finding(finding, ann_file, 'images', entry, entry['file_name']))

    images = {image['id']: image for image in valid['images']}
    rle_sizes = _find_rle_sizes(valid['annotations'], images, check_images) if usage.masks else {}
    names = {category['id']: category['name'] for category in valid['categories']}
    counts = dict.fromkeys(names.values(), 0)
    annotated: dict[int, set[str]] = {}
    for annotation in valid['annotations']:
        image = images.get(annotation['image_id'])
        name = names.get(annotation['category_id'])
        findings = list(_find_errors(annotation, image, name, known, usage, rle_sizes))
        if kinds_without_ids:  # the annotation may belong to an entry that was reported already
            findings = [each for each in findings if not any(
                each.rule == f'unknown-{SINGULAR[kind]}'
                for kind in kinds_without_ids)]  # yapf: disable
        if not findings and image is not None and name is not None:
            annotated.setdefault(image['id'], set()).add(name)
            findings, is_trained = _find_warnings(annotation, image, usage)
            counts[name] += is_trained
        file = image['file_name'] if image else str(ann_file)
        for finding in findings:
            report.add(_locate_finding(finding, ann_file, 'annotations', annotation, file))
    return Instances(counts, images, annotated)


def _locate_finding(finding: Finding, ann_file: Path, kind: str, entry: Entry,
                    file: str) -> Finding:
    """Return a finding whose message starts with the entry, or with what it was converted from."""
    place = entry.get(CONVERTED_FROM)
    if not isinstance(place, str):
        place = f'{ann_file}: {SINGULAR[kind]} {entry["id"]}'
    return replace(finding, message=f'{place}: {finding.message}', places=(file, ), id=entry['id'])


def _has_id(entry: Any) -> bool:
    """Return True if other entries can refer to this one."""
    return isinstance(entry, dict) and isinstance(entry.get('id'), (int, float, str))


def find_valid_entries(entries: list,
                       kind: str,
                       ann_file: Path,
                       report: Report,
                       known: Mapping[str, set[int]] | None = None,
                       usage: Usage | None = None) -> tuple[list[Entry], set[int]]:
    """Return the entries whose fields are valid, and the IDs of all entries."""
    known, usage = known or {'images': set()}, usage or Usage()
    valid, ids = [], []
    tests = [(key, field.holds) for key, field in FIELDS[kind].items()]
    for index, entry in enumerate(entries):
        try:
            is_valid = all(holds(entry[key]) for key, holds in tests)
        except (KeyError, TypeError, IndexError):
            is_valid = False
        if is_valid:
            valid.append(entry)
            ids.append(entry['id'])
        else:
            _report_entry(entry, index, kind, ann_file, report, known, usage)
            if _has_id(entry):
                ids.append(entry['id'])
    for number in find_repeated(ids):
        rule = 'repeated-category' if kind == 'categories' else f'repeated-{SINGULAR[kind]}-id'
        text = f'{ann_file}: {SINGULAR[kind]} {number} is duplicated'
        report.add(Finding(rule, text, (str(ann_file), ), id=number))
    return valid, set(ids)


def _report_entry(entry: Any, index: int, kind: str, ann_file: Path, report: Report,
                  known: Mapping[str, set[int]], usage: Usage) -> None:
    fields = FIELDS[kind]
    has_id = isinstance(entry, dict) and INTEGER.holds(entry.get('id'))
    place = f'{ann_file}: ' + (f'{SINGULAR[kind]} {entry["id"]}' if has_id else f'{kind}[{index}]')
    if usage.is_panoptic and isinstance(entry, dict):
        place = entry.get(CONVERTED_FROM, place)
    location: dict[str, Any] = dict(places=(str(ann_file), ), id=entry['id'] if has_id else None)
    if not isinstance(entry, dict):
        text = f'{place} must have {", ".join(fields)}, got {abbreviate(entry)}'
        report.add(Finding('incomplete-entry', text, **location))
        return
    missing = [key for key in fields if key not in entry]
    if missing:
        rule = 'no-iscrowd' if missing == ['iscrowd'] else 'incomplete-entry'
        effects = [_get_effect(entry, key, kind, known, usage) for key in missing]
        effect = min(effects, key=EFFECTS.index)
        text = f'{place} has no {", ".join(missing)}'
        report.add(Finding(rule, text, **location, effect=effect))
    for key, field in fields.items():
        if key in entry and not field.holds(entry[key]):
            text = f'{place}: {key} must be {field.expected}, got {abbreviate(entry[key])}'
            effect = _get_effect(entry, key, kind, known, usage)
            report.add(Finding('wrong-value', text, **location, effect=effect))


def _get_effect(entry: Entry, key: str, kind: str, known: Mapping[str, set[int]],
                usage: Usage) -> Effect:
    """Return the effect on training if a key of an entry is missing or wrong."""
    if kind == 'annotations' and key in ('bbox', 'area', 'iscrowd'):
        image = entry.get('image_id')
        if is_number(image, math.inf) and image not in known['images']:
            return 'none'  # mmdet reads annotations by image
        if entry.get('ignore') and not usage.evaluated:  # mmdet checks this first
            return 'none'
    if key not in entry:
        if key != 'iscrowd' or usage.needs_iscrowd:
            return 'loading'
        return 'meaning' if usage.evaluated else 'none'
    value = entry[key]
    if kind == 'categories' and key == 'name' and not usage.has_class(value):
        return 'none'
    is_integral = type(value) is int or type(value) is float and value.is_integer()
    if key == 'iscrowd' or key.endswith('id') and (isinstance(value, str) or is_integral):
        return 'meaning'
    if key in ('width', 'height') and is_number(value) and value > 0:
        return 'none'
    return 'loading'


def _find_rle_sizes(annotations: list[Entry], images: dict[int, Entry],
                    check_images: ImageCheck | None) -> dict[int, list[int]]:
    """Return image ID -> height and width, where the image matches its RLEs but not its entry."""
    sizes: dict[int, list[int]] = {}
    for annotation in annotations:
        image, mask = images.get(annotation['image_id']), annotation.get('segmentation')
        size: Any = mask.get('size') if isinstance(mask, dict) else None
        if image and is_size(size) and size != [image['height'], image['width']]:
            sizes[image['id']] = size
    entries = [dict(images[key], height=size[0], width=size[1]) for key, size in sizes.items()]
    for entry, _ in check_images(entries) if check_images and entries else ():
        sizes.pop(entry['id'], None)
    return sizes


def _find_errors(annotation: Entry, image: Entry | None, name: str | None, known: dict[str,
                                                                                       set[int]],
                 usage: Usage, rle_sizes: dict[int, list[int]]) -> Iterator[Finding]:
    for kind, key, referent in (('images', 'image', image), ('categories', 'category', name)):
        if referent is None and annotation[f'{key}_id'] not in known[kind]:
            text = f'{key} {annotation[f"{key}_id"]} does not exist'
            stops = usage.is_panoptic and key == 'category' and image
            yield Finding(f'unknown-{key}', text, effect='loading' if stops else 'meaning')
    if annotation['id'] == 0 and usage.evaluated:
        yield Finding(
            'id-0', 'annotation IDs must not be 0, which COCO evaluation reads as "not matched": '
            'use --data, which renumbers them')
    if not usage.masks:
        return
    is_used = image is not None and name is not None and usage.has_class(name)
    effect: Effect = 'sample' if is_used and not explain_omission(annotation, image) else 'none'
    mask = annotation.get('segmentation')
    if not mask:
        text = 'has no segmentation (pass --boxes-only to train on boxes)'
        yield Finding('no-segmentation', text, effect=effect)
        return
    size = [image['height'], image['width']] if image else None
    if error := find_segmentation_error(mask, size, usage.scores_polygons):
        rle_size = rle_sizes.get(image['id']) if image else None
        if effect == 'sample' and rle_size and isinstance(
                mask, dict) and not find_segmentation_error(mask, rle_size, False):
            effect = 'meaning'
        yield Finding('wrong-segmentation', error, effect=effect)


def explain_omission(annotation: Entry, image: Entry | None) -> tuple[str, str] | None:
    """Return the rule and reason by which mmdet omits an annotation, or None."""
    if annotation.get('ignore'):
        return 'not-trained', 'it is marked with ignore'
    left, top, width, height = box = annotation['bbox']
    if width < 1 or height < 1 or annotation['area'] <= 0:
        return 'empty-box', f'empty, box {box}, area {annotation["area"]}'
    if image and (min(left + width, top + height) <= 0 or left >= image['width']
                  or top >= image['height']):
        return 'box-outside', (f'box {box} is outside of its image of {image["width"]} x '
                               f'{image["height"]} pixels')
    return None


def _find_warnings(annotation: Entry, image: Entry, usage: Usage) -> tuple[list[Finding], bool]:
    """Return what mmdet does silently with a valid annotation, and whether it trains on it."""
    mask = annotation.get('segmentation') if usage.masks else None
    are_valid = [is_polygon(polygon) for polygon in mask] if isinstance(mask, list) else [True]
    omission = explain_omission(annotation, image)
    if not omission and not any(are_valid):
        omission = 'few-points', 'it has no polygon of at least three points'
    elif not omission and usage.polygons_only and isinstance(mask, dict) and \
            not annotation['iscrowd']:
        omission = 'not-trained', 'its segmentation is an RLE, but this recipe loads only ' \
            'polygons: set poly2mask=True in a copy of it'
    if omission:
        return [Finding(omission[0], f'not used for training: {omission[1]}')], False
    findings = []
    if not all(are_valid):
        text = f'{are_valid.count(False)} of its polygons are not used for training: they have ' \
               'fewer than three points'
        findings.append(Finding('few-points', text))
    left, top, width, height = box = annotation['bbox']
    overhang = max(-left, -top, left + width - image['width'], top + height - image['height'])
    if overhang > 1:
        text = f'box {box} extends {overhang:.1f} pixels beyond its image'
        findings.append(Finding('box-beyond', text))
    if mask and isinstance(mask, list) and not any(
            max(points[::2]) > 0 and max(points[1::2]) > 0 and min(points[::2]) < image['width']
            and min(points[1::2]) < image['height'] for points in mask if is_polygon(points)):
        findings.append(Finding('mask-outside', 'its polygons are outside of its image'))
    return findings, not annotation['iscrowd']
