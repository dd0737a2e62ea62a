"""Formats of instances, which detectors take: each becomes two COCO files."""
from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from colonnade.common.atomic_files import write_text
from colonnade.common.errors import UserError

from ..data_index import DataIndex, share_classes
from ..options import DataOptions
from ..validation.validation_report import Report
from .coco_folders import is_coco, read_coco, read_coco_file
from .coco_repairs import align_categories, fill_masks
from .conversion import convert_once, describe_split, split_images
from .data_format import DataFormat
from .instance_records import ALL, Reading, above_images, report_skipped
from .labelme import is_labelme, read_labelme
from .voc import is_voc, read_voc
from .yolo import is_yolo, read_yolo

Reader = Callable[[Path, Reading], dict[str, DataIndex]]
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
        skips_bad_data=args.on_bad_data == 'skip',
        boxes_only=args.boxes)
    found = [read(path, reading) for path in paths]
    if report.num_faults:
        return None
    if len(paths) == 1:
        return _convert_instances(form, found[0], args, reading)
    sides = {
        side: _only(*one)
        for side, one in zip(SIDES, zip(paths, found, strict=True), strict=True)
    }
    return _convert_instances(form, sides, args, reading)


def open_files(args: DataOptions, report: Report) -> Path | None:
    """As :func:`open_instances`, for ``--coco`` with two files, or with one and ``--split``."""
    files = args.coco
    root = os.path.commonpath([os.path.abspath(file.parent) for file in files])
    reading = Reading(Path(root), report, skips_bad_data=args.on_bad_data == 'skip')
    sides = SIDES if len(files) == 2 else (ALL, )
    indices = {
        side: read_coco_file(file, images, reading, masks=not args.boxes)
        for side, file, images in zip(sides, files, args.images[:len(files)], strict=True)
    }
    if report.num_faults:
        return None
    return _convert_instances('COCO', {
        side: index
        for side, index in indices.items() if index
    }, args, reading)


def _only(path: Path, indices: dict[str, DataIndex]) -> DataIndex:
    if len(indices) != 1:
        raise UserError(f'{path} is one of two paths of --data, and has the parts '
                        f'{", ".join(indices) or "none"}: name it alone')
    return next(iter(indices.values()))


def _convert_instances(form: str, indices: dict[str, DataIndex], args: DataOptions,
                       reading: Reading) -> Path | None:
    """Split the data if they are one part, write them if needed, and set the options."""
    share_classes(indices.values())
    found = list(indices.values())
    if not args.boxes:
        fill_masks(found, reading)
    if len(found) == 2:
        align_categories(found, reading)
    if len(found) == 1:  # which is split, and thus written
        found[0].detach(reading.root)
    sides, chosen = _two_sides(indices, args)
    for what, loss in reading.lost.items():
        reading.report.remark(f'{what} ({loss})')
    if reading.repairs:
        repairs = '; '.join(f'{what} ({loss})' for what, loss in reading.repairs.items())
        reading.report.remark(f'repaired: {repairs}')
    report_skipped(list(reading.skipped.values()), reading.report)
    args.images = [index.images for index in sides]
    files = [index.file for index in sides if index.file]
    if len(files) == len(sides):
        args.coco = files
        return None
    for index in sides:  # faults name the file that the user has
        index.detach(reading.root)
    record = dict(
        kind='instances',
        source=[os.path.abspath(path) for path in args.data or args.coco],
        form=form,
        fingerprint=[index.compute_fingerprint() for index in found],
        split=chosen)
    texts = {side: json.dumps(index.rows) + '\n' for side, index in zip(SIDES, sides, strict=True)}

    def write(scratch: Path) -> dict[str, Any]:
        for side, text in texts.items():
            write_text(scratch / f'{side}.json', text)
        return dict(
            counts={
                side: {
                    key: len(index.rows[key])
                    for key in COUNTED
                }
                for side, index in zip(SIDES, sides, strict=True)
            },
            lost={
                what: loss.count
                for what, loss in reading.lost.items()
            },
            repaired={
                what: loss.count
                for what, loss in reading.repairs.items()
            },
            skipped=list(reading.skipped.values()))

    folder, written = convert_once(
        args, record, write, tables=reading.tables, labels=reading.labels)
    reading.report.remark(f"{folder} is {'written' if written else 'used again'}: what was "
                          "converted, in COCO's form")
    args.coco = [folder / f'{side}.json' for side in SIDES]
    return folder if written else None


def _two_sides(indices: dict[str, DataIndex],
               args: DataOptions) -> tuple[list[DataIndex], dict[str, Any] | None]:
    """Return training and validation, and how they were chosen if the data are one part."""
    if 'train' in indices and 'val' in indices:
        if args.split:
            raise UserError('--split is for data of one part; these have training and validation')
        return [indices[side] for side in SIDES], None
    if len(indices) > 1 and ALL in indices:
        raise UserError(f'{_named(args)} does not tell which file is for training: name two files')
    whole = indices.get(ALL) or indices.get('train')
    if whole is None:
        raise UserError(f'{_named(args)} has no training images')
    if not args.split:
        raise UserError(f'{_named(args)} has no validation images of its own: say --split 0.2 to '
                        'take a part of the others, or name two paths')
    train, val = split_images(whole.find_classes_by_image(), args)
    return [whole.select(set(train)), whole.select(set(val))], \
        describe_split(args) | dict(train=train, val=val)


def _named(args: DataOptions) -> str:
    return ' and '.join(map(str, args.data or args.coco))


INSTANCE_FORMATS = tuple(
    DataFormat(name, 'instances', layout, detect, partial(open_instances, name, read))
    for name, layout, detect, read in (
        ('COCO',
         'annotations/*train*.json and *val*.json; or train/, valid/ with a JSON file each; '
         'or one JSON file', is_coco, read_coco),
        ('YOLO', 'data.yaml; or images/, labels/*.txt and classes.txt', is_yolo, read_yolo),
        ('Pascal VOC', 'Annotations/*.xml, JPEGImages/, ImageSets/Main/; or *.xml beside images',
         is_voc, read_voc),
        ('LabelMe', '*.json beside images, one an image', is_labelme, read_labelme),
    ))
