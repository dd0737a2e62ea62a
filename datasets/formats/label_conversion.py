"""Conversion of label maps of any format to label maps and lists that mmseg reads."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.progress import Progress

from ..data_index import DataIndex, LabelSet
from ..options import DataOptions
from ..validation.conversion_sources import RECORD
from ..validation.image_files import read_image_size, read_label_values, read_size_of_any
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .conversion import SIDES, convert_once, describe_split, split_images
from .data_format import check_remaining, report_skipped


class _ConversionError(Exception):
    """Errors of a conversion, which are in the report."""


def convert_label_maps(labels: LabelSet, args: DataOptions, report: Report) -> LabelSet | None:
    """Convert and split label maps where needed.

    Returns:
        Label maps of training and validation that mmseg reads, or None after an error.
    """
    if not report.num_errors:  # which may have left a split without images
        _check_num_splits(labels, args)
    for what, count in labels.dropped.items():
        report.add_warning(f'{labels.format}: {count} {what}')
    if labels.read is None and len(labels.splits) == 2 and args.on_bad_data != 'skip':
        return labels
    if report.num_errors:
        return None
    try:
        folder, is_new = _convert(labels, args, report)
    except _ConversionError:
        return None
    record = json.loads((folder / RECORD).read_text(encoding='utf-8'))
    report_skipped(record.get('skipped') or (), report)
    what = 'label maps and image lists' if labels.read else 'image lists'
    report.add_result(f'{folder}: {"wrote" if is_new else "reused"} {what}')
    splits = []
    for index, side in enumerate(SIDES):
        split = labels.splits[index % len(labels.splits)]
        masks, names = split.masks, record['images'][side]
        if labels.read:
            masks = folder / 'masks' / _get_folder_name(index, labels)
            label_maps = {name: masks / f'{name}.png' for name in names}
        else:
            label_maps = {name: split.label_maps[name] for name in names}
        splits.append(DataIndex(split.images, label_maps=label_maps, masks=masks))
    return replace(
        labels,
        splits=splits,
        lists=[folder / f'{side}.txt' for side in SIDES],
        suffixes=('', '.png') if labels.read else labels.suffixes)


def _get_folder_name(index: int, labels: LabelSet) -> str:
    """Return the name of the folder of converted label maps of a split."""
    return SIDES[index] if len(labels.splits) == 2 else ''


def _check_num_splits(labels: LabelSet, args: DataOptions) -> None:
    folders = [split.images for split in labels.splits]
    if not folders:
        raise UserError(f'{" and ".join(map(str, args.data))} has no annotated images')
    if len(folders) > 2:
        raise UserError(f'{labels.format}: the paths of --data must have two splits, training and '
                        f'validation, got {len(folders)}')
    if len(folders) == 1 and args.val_fraction is None:
        raise UserError(f'{folders[0]} has no validation images: pass --val-fraction 0.2 to use a '
                        'fraction of the training images')
    if len(folders) == 2 and args.val_fraction is not None:
        raise UserError('--val-fraction applies only to data without a validation split: remove '
                        f'it, since there are two splits, {folders[0]} and {folders[1]}')


def _convert(labels: LabelSet, args: DataOptions, report: Report) -> tuple[Path, bool]:
    with_images = args.on_bad_data == 'skip'  # the images decide what is skipped
    states = [split.compute_fingerprint(with_images=with_images) for split in labels.splits]
    record: dict[str, Any] = dict(
        kind='labels',
        source=[os.path.abspath(str(split.masks)) for split in labels.splits],
        form=labels.format,
        fingerprint=[labels.meaning, labels.suffixes, states],
        split=None if len(labels.splits) == 2 else describe_split(args))
    # A file about the whole dataset can have the shapes of an image, which then stands for them.
    files = [
        file for split in labels.splits for name, file in split.label_maps.items()
        if file != split.images / name
    ]
    num_files = sum(len(split.label_maps) for split in labels.splits)
    with Progress('label maps', num_files) as progress:
        return convert_once(
            args,
            record,
            partial(_write, labels=labels, args=args, report=report, progress=progress),
            tables=[*labels.tables, *(labels.lists or ())],
            labels={*files, *labels.annotations} if labels.read else (),
            listed=() if labels.read else files)


def _write(scratch: Path, labels: LabelSet, args: DataOptions, report: Report,
           progress: Progress) -> dict[str, Any]:
    """Write label maps and lists of images, and return content for the record."""
    skips_bad_data = args.on_bad_data == 'skip'
    errors = Report() if skips_bad_data else report
    classes: list[dict[str, list[str]]] = []
    num_written = 0
    for index, split in enumerate(labels.splits):
        classes.append({})
        for image, label_map in _read_label_maps(split, labels, errors, args.num_bands):
            classes[-1][image] = [str(label) for label in np.unique(label_map) if label != IGNORED]
            if labels.read is not None:
                file = scratch / 'masks' / _get_folder_name(index, labels) / f'{image}.png'
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(label_map).save(file)
            num_written += 1
            progress(num_written)
    reasons = [each.message for each in errors.findings]
    if skips_bad_data:
        folders = [split.images for split in labels.splits]
        check_remaining(zip(folders, map(len, classes), strict=True), reasons, report)
    if report.num_errors:
        raise _ConversionError
    names = list(map(list, classes)) if len(classes) == 2 else split_images(classes[0], args)
    images = dict(zip(SIDES, names, strict=True))
    suffix = '' if labels.read is not None or labels.suffixes is None else labels.suffixes[0]
    _write_lists(scratch, images, suffix)
    skipped = dict(skipped=reasons) if skips_bad_data else {}
    counts = {side: len(files) for side, files in images.items()}
    return dict(lost=dict(labels.dropped), counts=counts, images=images, **skipped)


def _write_lists(folder: Path, images: Mapping[str, list[str]], suffix: str) -> None:
    """Write the lists of images without their suffix, from which mmseg reads a split."""
    for side, files in images.items():
        stems = [file.removesuffix(suffix) for file in files]
        for stem in stems:
            if stem != stem.strip() or set('\r\n') & set(stem):
                raise UserError(f'{stem!r}: mmseg reads image names from a list, in which they '
                                'cannot start or end with a space, or contain line breaks')
        (folder / f'{side}.txt').write_text(
            ''.join(f'{stem}\n' for stem in stems), encoding='utf-8')


def _read_label_maps(split: DataIndex, labels: LabelSet, report: Report,
                     num_bands: int | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the images of a split with their label maps, or just their labels without a reader."""
    for image, source in split.label_maps.items():
        try:
            file = split.images / image
            size = read_image_size(file, num_bands=num_bands) if num_bands else \
                read_size_of_any(file)
        except OSError as error:
            report.add_skippable_error(f'{file} cannot be read: {error}')
            continue
        try:
            label_map = labels.read(source, size) if labels.read else np.array(
                sorted(read_label_values(source, size)), np.uint8)
        except (OSError, ValueError) as error:
            report.add_skippable_error(f'{source} cannot be used: {error}')
            continue
        if labels.read and label_map.shape != size[::-1]:
            report.add_skippable_error(
                f'{source} cannot be used: it has {label_map.shape[1]} x {label_map.shape[0]} '
                f'pixels, but the image has {size[0]} x {size[1]}')
            continue
        yield image, label_map
