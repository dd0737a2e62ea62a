"""A COCO file of one's own: what is in it, and all that is wrong with it."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.common.errors import UserError
from colonnade.datasets.gc_control import pause_gc
from colonnade.settings.findings import Finding
from colonnade.settings.rules import EFFECTS, Effect

from ..bit_depth import Depths
from .image_files import MOST_PIXELS, header_fault
from .segmentations import has_other_size, is_number, is_polygon, segmentation_fault
from .validation_report import Report, abbreviate, find_repeated, json_layout, other_format

CONVERTED_FROM = 'converted_from'  # key of entries that a conversion made: file and place
LARGEST_ID = 2**53  # beyond, programs that read numbers as floats confuse ids

#: what training does with an entry of which a key is missing or its value is wrong
EffectOf = Callable[[dict, str], Effect]


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


def load_coco(ann_file: Path,
              report: Report,
              *,
              annotated: bool = True,
              takes_bom: bool = False) -> dict[str, list] | None:
    """The lists of a COCO file, whatever they hold; None if it is no such file.

    Args:
        ann_file: The file.
        report: Takes what is wrong.
        annotated: Whether it must have annotations, which those of test images need not.
        takes_bom: Whether a byte order mark is passed over, of a file that is to be written again.
    """

    def fault(text: str) -> None:
        report.add(Finding('unreadable-annotations', text, (str(ann_file), )))

    if what := other_format(ann_file):
        fault(f"{ann_file} is {what}. --coco takes COCO's JSON, a file for training and one for "
              'validation. --data takes other forms')
        return None
    try:
        content = load_json(ann_file, takes_bom=takes_bom)
    except (OSError, ValueError, RecursionError) as error:
        fault(f'{ann_file} cannot be read: {error}')
        return None
    if isinstance(content, dict) and not annotated:
        content.setdefault('annotations', [])
    if not isinstance(content, dict) or not content.keys() >= FIELDS.keys():
        fault(f"{ann_file} is not in COCO's form: it needs {', '.join(FIELDS)}, it is "
              f'{json_layout(content)}')
        return None
    wrong = [key for key in FIELDS if not isinstance(content[key], list)]
    for key in wrong:
        fault(f'{ann_file}: {key} must be a list, got {abbreviate(content[key])}')
    if wrong:
        return None
    return {key: content[key] for key in FIELDS}


def load_json(path: Path, *, takes_bom: bool = False) -> Any:
    """What JSON in UTF-8 holds.

    Args:
        path: The file.
        takes_bom: See :func:`load_coco`.

    Raises:
        OSError: If it cannot be read.
        RecursionError: If it is nested too deep.
        ValueError: If it is none.
    """
    text = path.read_text(encoding='utf-8-sig' if takes_bom else 'utf-8')
    if text.startswith('\ufeff'):
        raise UserError('it starts with a byte order mark, at which pycocotools stops')
    with pause_gc():
        return json.loads(text)


@dataclass(frozen=True)
class Usage:
    """What a file in COCO's form is used for.

    Attributes:
        masks: Whether segmentations are used.
        polygons_alone: Whether an RLE is left out of training.
        evaluated: Whether it is the file to evaluate with.
        needs_iscrowd: Whether that evaluation stops at annotations without ``iscrowd``.
        classes: Names of the categories that are used; None for all.
        scores_masks: Whether an evaluation with it also compares masks.
    """
    masks: bool = True
    polygons_alone: bool = False
    evaluated: bool = False
    needs_iscrowd: bool = False
    classes: tuple[str, ...] | None = None
    scores_masks: bool = True

    @property
    def scores_polygons(self) -> bool:
        """Whether pycocotools compares with its masks."""
        return self.evaluated and self.scores_masks

    def uses(self, name: Any) -> bool:
        """Whether a category is used."""
        return not self.classes or name in self.classes


#: looks at the images of a file: each entry that has a fault, and what is wrong
Look = Callable[[list[dict[str, Any]]], Iterable[tuple[dict[str, Any], Finding]]]


def check_headers(folder: Path, depths: Depths | None = None) -> Look:
    """Look at the headers of all images in a folder, see :func:`~.image_files.image_size`."""

    def look(entries: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Finding]]:
        for entry in entries:
            if found := header_fault(folder / entry['file_name'], get_size(entry), depths):
                yield entry, found

    return look


def get_size(image: dict[str, Any]) -> tuple[int, int]:
    """Width and height that a file says of an image."""
    return image['width'], image['height']


def check_instances(ann_file: Path,
                    content: dict[str, list],
                    report: Report,
                    *,
                    look: Look | None = None,
                    usage: Usage | None = None) -> Instances:
    """Look at everything in a COCO file, and at its images.

    Args:
        ann_file: The file, which faults name.
        content: What it holds, from :func:`load_coco`.
        report: Takes what is wrong.
        look: At images; ``None`` leaves them out.
        usage: What the file is used for; ``None`` for training with masks.
    """
    usage = usage or Usage()
    whole: dict[str, list[dict]] = {}
    known: dict[str, set[int]] = {}
    for kind, fields in FIELDS.items():
        whole[kind], known[kind] = find_whole_entries(
            content[kind], kind, fields, ann_file, report,
            partial(_effect, kind=kind, known=known, usage=usage))
    for kind in FIELDS:
        if number := len(content[kind]) - len(whole[kind]):
            text = f'{ann_file}: {number} of {len(content[kind])} entries of {kind} were checked ' \
                   'for their keys and values alone, some of which are missing or wrong'
            report.add(Finding('skipped-check', text, (str(ann_file), )))
    lost_ids = {kind for kind in FIELDS if not all(map(_has_id, content[kind]))}
    for name in find_repeated(category['name'] for category in whole['categories']):
        text = f'{ann_file}: categories: more than one is named {name!r}'
        found = Finding('repeated-category', text, (str(ann_file), ))
        report.add(found if usage.uses(name) else replace(found, effect='none'))
    for name in find_repeated(image['file_name'] for image in whole['images']):
        text = f'{ann_file}: images: {name} stands there more than once'
        report.add(Finding('repeated-file', text, (name, )))
    for entry, found in look(whole['images']) if look else ():
        report.add(_placed(found, ann_file, 'images', entry, entry['file_name']))

    images = {image['id']: image for image in whole['images']}
    fitting = _sizes_of_masks(whole['annotations'], images, look) if usage.masks else {}
    names = {category['id']: category['name'] for category in whole['categories']}
    counts = dict.fromkeys(names.values(), 0)
    annotated: dict[int, set[str]] = {}
    for annotation in whole['annotations']:
        image = images.get(annotation['image_id'])
        name = names.get(annotation['category_id'])
        findings = list(_annotation_faults(annotation, image, name, known, usage, fitting))
        if lost_ids:  # of which the annotation may be: it is the entry's fault, not its own
            findings = [fault for fault in findings if not any(
                fault.rule == f'unknown-{SINGULAR[kind]}' for kind in lost_ids)]  # yapf: disable
        if not findings and image is not None and name is not None:
            annotated.setdefault(image['id'], set()).add(name)
            findings, trains = _remarks(annotation, image, usage)
            counts[name] += trains
        file = image['file_name'] if image else str(ann_file)
        for found in findings:
            report.add(_placed(found, ann_file, 'annotations', annotation, file))
    return Instances(counts, images, annotated)


def _placed(found: Finding, ann_file: Path, kind: str, entry: dict[str, Any], file: str) -> Finding:
    """Return what was found about an entry with its place in the file."""
    text = f'{describe_place(ann_file, kind, entry)}: {found.message}'
    return replace(found, message=text, places=(file, ), id=entry['id'])


def _has_id(entry: Any) -> bool:
    """Return True if other entries can name this one."""
    return isinstance(entry, dict) and isinstance(entry.get('id'), (int, float, str))


def describe_place(ann_file: Path, kind: str, entry: dict[str, Any]) -> str:
    """Where an entry stands, or what it was converted from."""
    source = entry.get(CONVERTED_FROM)
    return source if isinstance(source, str) else f'{ann_file}: {SINGULAR[kind]} {entry["id"]}'


def find_whole_entries(entries: list,
                       kind: str,
                       fields: dict[str, Field],
                       ann_file: Path,
                       report: Report,
                       effect_of: EffectOf | None = None) -> tuple[list[dict], set[int]]:
    """The entries whose fields are as they must be, and the ids of all."""
    effect_of = effect_of or partial(_effect, kind=kind, known={'images': set()}, usage=Usage())
    whole, ids = [], []
    tests = [(key, field.holds) for key, field in fields.items()]
    for index, entry in enumerate(entries):
        try:
            is_whole = all(holds(entry[key]) for key, holds in tests)
        except (KeyError, TypeError, IndexError):
            is_whole = False
        if is_whole:
            whole.append(entry)
            ids.append(entry['id'])
        else:
            _report_entry(entry, index, kind, fields, ann_file, report, effect_of)
            if _has_id(entry):
                ids.append(entry['id'])
    for number in find_repeated(ids):
        rule = 'repeated-category' if kind == 'categories' else f'repeated-{SINGULAR[kind]}-id'
        text = f'{ann_file}: {SINGULAR[kind]} {number} stands there more than once'
        report.add(Finding(rule, text, (str(ann_file), ), id=number))
    return whole, set(ids)


def _report_entry(entry: Any, index: int, kind: str, fields: dict[str, Field], ann_file: Path,
                  report: Report, effect_of: EffectOf) -> None:
    """Report what an entry lacks, and what is none of the values that it must be."""
    has_id = isinstance(entry, dict) and WHOLE.holds(entry.get('id'))
    where = f'{SINGULAR[kind]} {entry["id"]}' if has_id else f'{kind}[{index}]'
    about: dict[str, Any] = dict(places=(str(ann_file), ), id=entry['id'] if has_id else None)
    if not isinstance(entry, dict):
        text = f'{ann_file}: {where} must have {", ".join(fields)}, got {abbreviate(entry)}'
        report.add(Finding('incomplete-entry', text, **about))
        return
    missing = [key for key in fields if key not in entry]
    if missing:
        rule = 'no-iscrowd' if missing == ['iscrowd'] else 'incomplete-entry'
        effect = min((effect_of(entry, key) for key in missing), key=EFFECTS.index)
        text = f'{ann_file}: {where} has no {", ".join(missing)}'
        report.add(Finding(rule, text, **about, effect=effect))
    for key, field in fields.items():
        if key in entry and not field.holds(entry[key]):
            text = f'{ann_file}: {where}: {key} must be {field.wanted}, got ' \
                   f'{abbreviate(entry[key])}'
            report.add(Finding('wrong-value', text, **about, effect=effect_of(entry, key)))


def _effect(entry: dict, key: str, kind: str, known: dict[str, set[int]], usage: Usage) -> Effect:
    """What training does with an entry that lacks a key, or whose value is not as it must be."""
    if kind == 'annotations' and key in ('bbox', 'area', 'iscrowd'):
        image = entry.get('image_id')
        if is_number(image, math.inf) and image not in known['images']:
            return 'none'  # mmdet reads annotations by their image
        if entry.get('ignore') and not usage.evaluated:  # which mmdet asks first
            return 'none'
    if key == 'iscrowd' and key not in entry:
        return 'loading' if usage.needs_iscrowd else 'meaning' if usage.evaluated else 'none'
    if key not in entry:
        return 'loading'
    if kind == 'categories' and key == 'name' and not usage.uses(entry[key]):
        return 'none'
    return _effect_of_value(key, entry[key])


def _effect_of_value(key: str, value: Any) -> Effect:
    """What training does with a value that is not as it must be."""
    is_id = key.endswith('id') and (isinstance(value, str) or is_whole(value))
    if is_id or key == 'iscrowd':
        return 'meaning'
    if key in ('width', 'height') and is_number(value) and value > 0:
        return 'none'
    return 'loading'


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, of any size and also as a float."""
    return type(value) is int or type(value) is float and value.is_integer()


def _sizes_of_masks(annotations: list[dict], images: dict[int, dict],
                    look: Look | None) -> dict[int, list[int]]:
    """Height and width by the ids of images that have the size of their RLEs, not the file's."""
    found = {}
    for annotation in annotations:
        image, mask = images.get(annotation['image_id']), annotation.get('segmentation')
        if image and isinstance(mask, dict) and has_other_size(mask,
                                                               [image['height'], image['width']]):
            found[image['id']] = mask['size']
    entries = [dict(images[i], height=size[0], width=size[1]) for i, size in found.items()]
    for entry, _ in look(entries) if look and entries else ():
        found.pop(entry['id'], None)
    return found


def _annotation_faults(annotation: dict, image: dict | None, name: str | None,
                       known: dict[str, set[int]], usage: Usage,
                       fitting: dict[int, list[int]]) -> Iterator[Finding]:
    """What is wrong with an annotation."""
    for kind, key, found in (('images', 'image', image), ('categories', 'category', name)):
        if found is None and annotation[f'{key}_id'] not in known[kind]:
            yield Finding(f'unknown-{key}', f'there is no {key} {annotation[f"{key}_id"]}')
    if annotation['id'] == 0 and usage.evaluated:
        yield Finding(
            'id-0', 'ids must not be 0, which COCO\'s evaluation takes for "not matched": --data '
            'renumbers them')
    if not usage.masks:
        return
    used = image is not None and name is not None and usage.uses(name)
    effect: Effect = 'sample' if used and not why_left_out(annotation, image) else 'none'
    mask = annotation.get('segmentation')
    if not mask:
        text = 'has no segmentation (--boxes trains boxes alone)'
        yield Finding('no-segmentation', text, effect=effect)
    else:
        size = [image['height'], image['width']] if image else None
        if fault := segmentation_fault(mask, size, usage.scores_polygons):
            real = fitting.get(image['id']) if image else None
            if real and isinstance(mask, dict) and not segmentation_fault(mask, real, False):
                effect = 'meaning' if effect == 'sample' else effect
            yield Finding('wrong-segmentation', fault, effect=effect)


def why_left_out(annotation: dict, image: dict | None) -> tuple[str, str] | None:
    """Return the rule and reason by which mmdet leaves an annotation out, if it does."""
    if annotation.get('ignore'):
        return 'not-trained', 'it is marked to be ignored'
    left, top, width, height = box = annotation['bbox']
    if width < 1 or height < 1 or annotation['area'] <= 0:
        return 'empty-box', f'empty, box {box}, area {annotation["area"]}'
    if image and (min(left + width, top + height) <= 0 or left >= image['width']
                  or top >= image['height']):
        return 'box-outside', (f'box {box} lies outside its image of {image["width"]} x '
                               f'{image["height"]}')
    return None


def _remarks(annotation: dict, image: dict, usage: Usage) -> tuple[list[Finding], bool]:
    """What mmdet does with a sound annotation in silence, and whether it trains with it."""
    mask = annotation.get('segmentation') if usage.masks else None
    polygons = [is_polygon(polygon) for polygon in mask] if isinstance(mask, list) else [True]
    why = why_left_out(annotation, image)
    if not why and not any(polygons):
        why = 'few-points', 'no polygon of at least three points'
    elif not why and usage.polygons_alone and isinstance(mask, dict) and \
            not annotation['iscrowd']:
        why = 'not-trained', 'its segmentation is an RLE, and this recipe loads polygons alone: ' \
              'set poly2mask=True in a copy of it'
    if why:
        return [Finding(why[0], f'left out of training: {why[1]}')], False
    remarks = []
    if not all(polygons):
        remarks.append(
            Finding('few-points', f'{polygons.count(False)} of its polygons are left out of '
                    'training: they do not have three points or more'))  # yapf: disable
    left, top, width, height = box = annotation['bbox']
    beyond = max(-left, -top, left + width - image['width'], top + height - image['height'])
    if beyond > 1:
        text = f'box {box} reaches {beyond:.1f} pixels out of its image'
        remarks.append(Finding('box-beyond', text))
    if mask and isinstance(mask, list) and _is_outside(mask, image):
        remarks.append(Finding('mask-outside', 'its polygons lie outside its image'))
    return remarks, not annotation['iscrowd']


def _is_outside(polygons: list[list[float]], image: dict) -> bool:
    """Whether no polygon reaches into the image."""
    return not any(
        max(points[::2]) > 0 and max(points[1::2]) > 0 and min(points[::2]) < image['width']
        and min(points[1::2]) < image['height'] for points in polygons if is_polygon(points))
