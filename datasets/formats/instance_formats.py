"""Formats of instances, for detectors, which are converted to two COCO files."""
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
from .coco import is_coco, read_coco, read_coco_file
from .coco_repairs import align_categories, fill_masks
from .conversion import SIDES, convert_once, describe_split, split_images
from .data_format import (ALL, DataFormat, ReadContext, check_remaining, find_root_above_images,
                          report_skipped)
from .panoptic import (is_panoptic, order_things_first, read_converted, read_panoptic,
                       read_panoptic_file, write_segments)
from .shape_formats import SHAPE_FORMATS
from .shapes import index_shapes
from .stuff import StuffMaps, add_stuff, draw_panoptic
from .voc import is_voc, read_voc
from .yolo import is_yolo, read_yolo

Reader = Callable[[Path, ReadContext], dict[str, DataIndex]]
PANOPTIC = 'COCO panoptic'
COUNTED = ('images', 'annotations', 'categories')


def open_instances(name: str, read: Reader, args: DataOptions,
                   report: Report) -> list[DataIndex] | None:
    """Return training and validation with their COCO files, which are written where needed.

    With ``--stuff``, instances become panoptic segments.

    Args:
        name: Name of the format.
        read: Reader of the format.

    Returns:
        None after an error.
    """
    folders = [find_root_above_images(p.parent if p.is_file() else p) for p in args.data]
    context = _make_context(Path(os.path.commonpath(folders)), args, report)
    indices = [read(path, context) for path in args.data]
    if report.num_errors:
        return None
    if len(indices) == 1:
        return _convert(name, indices[0], args, context)
    for path, splits in zip(args.data, indices, strict=True):
        if len(splits) != 1:
            raise UserError(f'{path} must have one split, since --data has two paths, got '
                            f'{", ".join(splits) or "none"}: pass only this path')
    sides = {side: next(iter(each.values())) for side, each in zip(SIDES, indices, strict=True)}
    return _convert(name, sides, args, context)


def open_coco_files(args: DataOptions,
                    report: Report,
                    panoptic: bool = False) -> list[DataIndex] | None:
    """Like :func:`open_instances`, for ``--coco``."""
    root = os.path.commonpath([os.path.abspath(file.parent) for file in args.coco])
    context = _make_context(Path(root), args, report)
    sides = SIDES if len(args.coco) == 2 else (ALL, )
    read: Any = read_panoptic_file if panoptic else partial(
        read_coco_file, masks=not args.boxes_only)
    indices = {
        side: index
        for side, file, images in zip(sides, args.coco, args.images[:len(args.coco)], strict=True)
        if (index := read(file, images, context))
    }
    name = PANOPTIC if panoptic else 'COCO'
    return None if report.num_errors else _convert(name, indices, args, context)


def _make_context(root: Path, args: DataOptions, report: Report) -> ReadContext:
    return ReadContext(
        root,
        report,
        paths=args.data,
        skips_bad_data=args.on_bad_data == 'skip',
        boxes_only=args.boxes_only,
        classes=args.classes,
        num_bands=args.num_bands)


def _convert(name: str, indices: dict[str, DataIndex], args: DataOptions,
             context: ReadContext) -> list[DataIndex] | None:
    """Return training and validation, split, aligned and written where needed.

    None after an error, which is reported.
    """
    report, original = context.report, list(indices.values())
    if context.skipped:
        counts = [(index.images, len(index.rows['images'])) for index in original]
        check_remaining(counts, list(context.skipped.values()), report)
        if report.num_errors:
            return None
    share_classes(original)
    if not args.boxes_only:
        fill_masks(original, context)
    if len(original) == 2:
        align_categories(original, context)
    if len(original) == 1:  # it is split, and thus written
        original[0].detach(context.root)
    if name == PANOPTIC:
        order_things_first(original, context)
    sides, split = _split_indices(indices, args)
    stuff = []
    for number, index in enumerate(sides if args.stuff else ()):
        stuff.append(add_stuff(index, args.stuff[min(number, len(args.stuff) - 1)], args, context))
    if report.num_errors:
        return None
    for what, occurrences in context.dropped.items():
        report.add_warning(f'{what} ({occurrences})')
    context.report_repairs()
    report_skipped(list(context.skipped.values()), report)
    if all(index.file for index in sides) and not stuff:
        return sides
    for index in sides:  # messages name the original files
        index.detach(context.root)
    record = dict(
        kind='panoptic' if stuff or name == PANOPTIC else 'instances',
        source=[os.path.abspath(path) for path in args.data or args.coco],
        form=f'{name} and stuff' if stuff else name,
        fingerprint=[index.compute_fingerprint()
                     for index in original] + [_describe_stuff(each) for each in stuff],
        split=split)

    def write(scratch: Path) -> dict[str, Any]:
        counts = {}
        for number, (side, index) in enumerate(zip(SIDES, sides, strict=True)):
            file = scratch / f'{side}.json'
            if stuff:
                draw_panoptic(index, stuff[number], file, context)
            else:
                rows = write_segments(index, file.with_suffix('')) if index.masks else index.rows
                write_text(file, json.dumps(rows) + '\n')
            counts[side] = {key: len(index.rows[key]) for key in COUNTED}
        dropped, repaired = ({
            what: occurrences.count
            for what, occurrences in each.items()
        } for each in (context.dropped, context.repairs))
        skipped = list(context.skipped.values())
        return dict(counts=counts, lost=dropped, repaired=repaired, skipped=skipped)

    folder, is_new = convert_once(args, record, write, tables=context.tables, labels=context.labels)
    report.add_result(f'{folder}: {"wrote" if is_new else "reused"} converted COCO files')
    for side, index in zip(SIDES, sides, strict=True):
        index.file = folder / f'{side}.json'
        if (folder / side).is_dir():  # PNG images of segments
            read_converted(index, folder / side, report)
    return sides


def _describe_stuff(stuff: StuffMaps) -> list[Any]:
    states = [file.stat() for file in stuff.files.values() if file.exists()]
    return [[*stuff.labels.items()], stuff.categories,
            [[each.st_size, each.st_mtime_ns] for each in states]]  # yapf: disable


def _split_indices(indices: dict[str, DataIndex],
                   args: DataOptions) -> tuple[list[DataIndex], dict[str, Any] | None]:
    """Return training and validation, and the record of a random split if there was one."""
    name = ' and '.join(map(str, args.data or args.coco))
    if 'train' in indices and 'val' in indices:
        if args.val_fraction:
            raise UserError('--val-fraction applies only to data without a validation split: '
                            f'remove it, since {name} has one')
        return [indices[side] for side in SIDES], None
    if len(indices) > 1 and ALL in indices:
        raise UserError(f'{name}: it is unclear which file is for training: pass two files')
    all_images = indices.get(ALL) or indices.get('train')
    if all_images is None:
        raise UserError(f'{name} has no training images')
    if not args.val_fraction:
        raise UserError(
            f'{name} has no validation images: pass --val-fraction 0.2 to use a fraction '
            'of the training images, or pass two paths')
    train, val = split_images(all_images.find_classes_by_image(), args)
    return [all_images.select(set(train)), all_images.select(set(val))], \
        describe_split(args) | dict(train=train, val=val)


PANOPTIC_FORMATS = (DataFormat(
    PANOPTIC, 'panoptic', 'annotations/*train*.json and *val*.json with segments_info, and a '
    'folder of PNG images for each; or one of both', is_panoptic,
    partial(open_instances, PANOPTIC, read_panoptic)), )
#: name, files by which it is detected, detection, reader
INSTANCE_READERS: tuple[tuple[str, str, Callable[[Path], bool], Reader], ...] = (
    ('COCO',
     'annotations/*train*.json and *val*.json; or train/, valid/ with a JSON file each; or one '
     'JSON file', is_coco, read_coco),
    ('YOLO', 'data.yaml; or images/, labels/*.txt and classes.txt', is_yolo, read_yolo),
    ('Pascal VOC', 'Annotations/*.xml, JPEGImages/, ImageSets/Main/; or *.xml next to images',
     is_voc, read_voc),
)  # yapf: disable
INSTANCE_FORMATS = (
    *(DataFormat(name, 'instances', layout, detect, partial(open_instances, name, read))
      for name, layout, detect, read in INSTANCE_READERS),
    *(DataFormat(name, 'instances', layout, detect,
                 partial(open_instances, name, partial(index_shapes, read)))
      for name, layout, detect, read in SHAPE_FORMATS),
)
