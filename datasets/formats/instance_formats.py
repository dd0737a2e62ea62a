"""Doors for instances, which detectors take: each form becomes two COCO files."""
from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names

from ..options import DataOptions
from ..validation.validation_report import Report
from .coco_folders import is_coco, named_by_source, read_coco, read_file
from .coco_repairs import align_categories, fill_masks
from .conversion import convert_once, data_out, recorded_options
from .data_format import Door
from .instance_records import ALL, Loss, Part, Reading, above_images, report_skipped
from .labelme import is_labelme, read_labelme
from .splitting import split
from .voc import is_voc, read_voc
from .yolo import is_yolo, read_yolo

Reader = Callable[[Path, Reading], dict[str, Part]]
SIDES = ('train', 'val')
COUNTED = ('images', 'annotations', 'categories')


def open_instances(form: str, read: Reader, args: DataOptions, report: Report) -> Path | None:
    """Set ``coco`` and ``images`` of the options to files in COCO's form, written where needed.

    Args:
        form: Name of the form.
        read: Its reader.
        args: Options of a tool; changed.
        report: Takes faults and what is lost.

    Returns:
        The folder of a conversion if it was written now.

    Raises:
        OSError: If something cannot be read or written.
        ValueError: If there are not two parts, and no ``--split``.
    """
    paths = args.data
    folders = [above_images(path.parent if path.is_file() else path) for path in paths]
    reading = Reading(
        Path(os.path.commonpath(folders)),
        report,
        paths=paths,
        skips_bad_data=_skips(args),
        boxes_only=args.boxes)
    found = [read(path, reading) for path in paths]
    if report.num_faults:
        return None
    if len(paths) == 1:
        return _finish(form, found[0], args, reading)
    sides = {
        side: _only(*one)
        for side, one in zip(SIDES, zip(paths, found, strict=True), strict=True)
    }
    return _finish(form, sides, args, reading)


def open_files(args: DataOptions, report: Report) -> Path | None:
    """As :func:`open_instances`, for ``--coco`` with two files, or with one and ``--split``."""
    files = args.coco
    root = os.path.commonpath([os.path.abspath(file.parent) for file in files])
    reading = Reading(Path(root), report, skips_bad_data=_skips(args))
    sides = SIDES if len(files) == 2 else (ALL, )
    parts = {
        side: read_file(file, images, reading, masks=not args.boxes)
        for side, file, images in zip(sides, files, args.images[:len(files)], strict=True)
    }
    if report.num_faults:
        return None
    return _finish('COCO', {side: part for side, part in parts.items() if part}, args, reading)


def _skips(args: DataOptions) -> bool:
    """Return True if samples that cannot be used are left out."""
    return args.on_bad_data == 'skip'


def _only(path: Path, parts: dict[str, Part]) -> Part:
    if len(parts) != 1:
        raise UserError(f'{path} is one of two paths of --data, and has the parts '
                        f'{", ".join(parts) or "none"}: name it alone')
    return next(iter(parts.values()))


def _finish(form: str, parts: dict[str, Part], args: DataOptions, reading: Reading) -> Path | None:
    """Split the data if they are one part, write them if needed, and set the options."""
    _with_all_classes(parts)
    change = partial(_prepare_change, reading=reading)
    if not args.boxes:
        fill_masks(parts.values(), change, reading)
    if len(parts) == 2:
        align_categories(parts, change, reading)
    if len(parts) == 1:  # which is split, and thus written
        change(*parts.values())
    whole = parts
    parts, chosen = _two_sides(whole, args)
    for what, loss in reading.lost.items():
        reading.report.remark(f'{what} ({_counted(loss)})')
    if reading.repairs:
        reading.report.remark('repaired: ' + '; '.join(f'{what} ({_counted(loss)})'
                                                       for what, loss in reading.repairs.items()))
    report_skipped(list(reading.skipped.values()), reading.report)
    args.images = [parts[side].images for side in SIDES]
    files = [file for side in SIDES if (file := parts[side].file)]
    if len(files) == len(SIDES):
        args.coco = files
        return None
    for part in parts.values():  # faults name the file that the user has
        _prepare_change(part, reading)
    texts = {side: json.dumps(parts[side].content) + '\n' for side in SIDES}
    counts = {side: {key: len(parts[side].content[key]) for key in COUNTED} for side in SIDES}
    folder = data_out(args)
    record = dict(
        kind='instances',
        options=recorded_options(args, folder),
        source=[os.path.abspath(path) for path in args.data or args.coco],
        form=form,
        fingerprint=_fingerprint(whole),
        split=chosen,
        counts=counts,
        lost={
            what: loss.count
            for what, loss in reading.lost.items()
        },
        repaired={
            what: loss.count
            for what, loss in reading.repairs.items()
        },
        skipped=list(reading.skipped.values()))

    def write(scratch: Path) -> None:
        for side, text in texts.items():
            write_text(scratch / f'{side}.json', text)

    written = convert_once(folder, record, write, tables=reading.tables, labels=reading.labels)
    reading.report.remark(f"{folder} is {'written' if written else 'used again'}: what was "
                          "converted, in COCO's form")
    args.coco = [folder / f'{side}.json' for side in SIDES]
    return folder if written else None


def _prepare_change(part: Part, reading: Reading) -> None:
    """Name the entries of a part after its file, which no longer holds what the part does."""
    if part.file:
        part.content = named_by_source(part.content, reading.source(part.file))
        part.file = None


def _counted(loss: Loss) -> str:
    """Return how often something happened, and where first."""
    return f'{loss.count}, the first: {loss.first}' if loss.first else str(loss.count)


def _fingerprint(parts: dict[str, Part]) -> str:
    """Another text where data are others, however they are split."""
    digest = hashlib.sha256()
    for part in parts.values():
        digest.update(json.dumps([str(part.images), part.content]).encode())
    return digest.hexdigest()


def _with_all_classes(parts: dict[str, Part]) -> None:
    """Give parts whose classes are those that occur in them the classes of all."""
    counted = [part.content for part in parts.values() if part.counted]
    names = sorted({category['name'] for content in counted for category in content['categories']})
    for content in counted:
        ids = {category['id']: names.index(category['name']) for category in content['categories']}
        content['categories'] = [dict(id=number, name=name) for number, name in enumerate(names)]
        for annotation in content['annotations']:
            annotation['category_id'] = ids[annotation['category_id']]


def _two_sides(parts: dict[str, Part],
               args: DataOptions) -> tuple[dict[str, Part], dict[str, Any] | None]:
    """Training and validation, and how they were chosen if the data are one part."""
    if 'train' in parts and 'val' in parts:
        if args.split:
            raise UserError('--split is for data of one part; these have training and validation')
        return parts, None
    if len(parts) > 1 and ALL in parts:
        raise UserError(f'{_named(args)} does not tell which file is for training: name two files')
    part = parts.get(ALL) or parts.get('train')
    if part is None:
        raise UserError(f'{_named(args)} has no training images')
    if not args.split:
        raise UserError(f'{_named(args)} has no validation images of its own: say --split 0.2 to '
                        'take a part of the others, or name two paths')
    return _split(part, args)


def _named(args: DataOptions) -> str:
    return ' and '.join(map(str, args.data or args.coco))


def _split(part: Part, args: DataOptions) -> tuple[dict[str, Part], dict[str, Any]]:
    content = part.content
    names = {image['id']: image['file_name'] for image in content['images']}
    classes = {category['id']: category['name'] for category in content['categories']}
    labels: dict[str, set[str]] = {name: set() for name in names.values()}
    for annotation in content['annotations']:
        name = names.get(annotation['image_id'])
        if name is not None:
            labels[name].add(classes.get(annotation['category_id'], ''))
    groups = groups_of(labels, args.group)
    assert args.split  # see _two_sides
    sides = split(labels, args.split, groups=groups, seed=args.split_seed)
    parts = {side: _restricted(part.images, content, set(chosen))
             for side, chosen in zip(SIDES, sides, strict=True)}  # yapf: disable
    chosen = dict(
        fraction=args.split, seed=args.split_seed, group=args.group, train=sides[0], val=sides[1])
    return parts, chosen


def groups_of(names: Mapping[str, Any], pattern: str | None) -> dict[str, str] | None:
    """The group of each image, by its name.

    Args:
        names: Of the images.
        pattern: A regular expression, of which the first group is meant; ``None`` is no groups.

    Raises:
        ValueError: If a name does not match.
    """
    if pattern is None:
        return None
    found = {name: re.search(pattern, name) for name in names}
    missing = [name for name, match in found.items() if match is None or match[1] is None]
    if missing:
        raise UserError(f'--group {pattern} does not match {len(missing)} names of images: '
                        f'{format_names(missing)}')
    return {name: match[1] for name, match in found.items() if match}


def _restricted(images: Path, content: dict[str, list], names: set[str]) -> Part:
    """The part of a COCO file that is of some images."""
    kept = [image for image in content['images'] if image['file_name'] in names]
    ids = {image['id'] for image in kept}
    annotations = [a for a in content['annotations'] if a['image_id'] in ids]
    return Part(images, content | dict(images=kept, annotations=annotations))


INSTANCE_DOORS = tuple(
    Door(name, 'instances', layout, recognises, partial(open_instances, name, read))
    for name, layout, recognises, read in (
        ('COCO',
         'annotations/*train*.json and *val*.json; or train/, valid/ with a JSON file each; '
         'or one JSON file', is_coco, read_coco),
        ('YOLO', 'data.yaml; or images/, labels/*.txt and classes.txt', is_yolo, read_yolo),
        ('Pascal VOC', 'Annotations/*.xml, JPEGImages/, ImageSets/Main/; or *.xml beside images',
         is_voc, read_voc),
        ('LabelMe', '*.json beside images, one an image', is_labelme, read_labelme),
    ))
