"""Validation of custom label maps, and their dataset settings for a config."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.common.name_lists import format_count, format_names

from ..bit_depth import ImageDepths
from ..data_index import DataIndex, LabelSet
from ..validation.image_files import read_image_size, read_label_values
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .instance_datasets import (CustomDataset, find_common_root, find_outside, make_absolute,
                                report_depths, warn_of_overlap)

Labels = dict[Path, frozenset[int]]  # label map -> values in it


def describe_label_maps(data: LabelSet, names: list[str] | None, *, label_zero: str | None,
                        ignore_255: bool, num_bands: int | None,
                        report: Report) -> CustomDataset | None:
    """Return the settings for label maps of training and validation, or None if they are unusable.

    Args:
        data: Label maps that mmseg can read.
        names, label_zero: See :func:`interpret_labels`; what the data format sets comes first.
        ignore_255: Whether label 255 stands for unlabeled pixels.
        num_bands: See :func:`.read_image_size`.
    """
    splits, suffixes = data.splits, data.suffixes
    if not splits or suffixes is None:  # reported by the reader
        return None
    images = [split.images for split in splits]
    masks = [split.masks for split in splits if split.masks]
    image_names = [list(split.label_maps) for split in splits]
    warn_of_overlap(images, image_names, report)
    if not data.lists and images == masks and suffixes[1].endswith(suffixes[0]):
        report.add_error(f'{images[0]}: mmseg would mistake label maps *{suffixes[1]} for '
                         f'images *{suffixes[0]}: move them to separate folders')
        return None
    depths = ImageDepths()
    train, val = (_read_labels(split, depths, report, num_bands) for split in splits)
    report_depths(depths, report)
    values = _merge_values(train) | _merge_values(val)
    if not values:
        if train or val:
            report.add_error(f'every pixel of every label map is {IGNORED}, which mmseg ignores')
        return None
    names = list(data.classes) if data.classes is not None else names
    label_zero = label_zero or data.label_zero
    classes, reduce_zero_label, reason = interpret_labels(values, names, label_zero)
    _check_labels(train, val, classes, int(reduce_zero_label), ignore_255 or data.ignore_255,
                  report)
    if names is None or label_zero is None:
        _explain_labels(values, names, classes, reduce_zero_label, report)
    root = find_common_root([*masks, *images, *(data.lists or ())])
    settings: list[dict[str, Any]] = []
    for index, folders in enumerate(zip(images, masks, strict=True)):
        prefixes = [os.path.relpath(make_absolute(folder), root) for folder in folders]
        settings.append(
            dict(
                type='BaseSegDataset',
                data_prefix=dict(img_path=prefixes[0], seg_map_path=prefixes[1]),
                img_suffix=suffixes[0],
                seg_map_suffix=suffixes[1],
                reduce_zero_label=reduce_zero_label))
        if data.lists:
            settings[-1]['ann_file'] = os.path.relpath(make_absolute(data.lists[index]), root)
    files = image_names + [[os.path.relpath(file, folder) for file in split.label_maps.values()]
                           for split, folder in zip(splits, masks, strict=True)]  # yapf: disable
    return CustomDataset(
        classes, (len(train), len(val)),
        root,
        settings,
        palette=list(data.palette) if data.palette and len(data.palette) == len(classes) else None,
        reasons=[reason],
        outside=find_outside(root, [*images, *masks], files),
        train_images=[images[0] / name for name in image_names[0]])


def _read_labels(split: DataIndex, depths: ImageDepths, report: Report,
                 num_bands: int | None) -> Labels:
    """Return the labels in all label maps of a split, and check the headers of their images."""
    labels = {}
    for name, mask in split.label_maps.items():
        image = split.images / name
        try:
            size = read_image_size(image, depths, num_bands=num_bands)
        except OSError as error:
            report.add_skippable_error(f'{image} cannot be read: {error}')
            continue
        try:
            labels[mask] = read_label_values(mask, size)
        except (OSError, ValueError) as error:
            report.add_skippable_error(f'{mask} cannot be used: {error}')
            continue
        if labels[mask] <= {IGNORED}:
            report.add_warning(f'{mask}: every pixel is {IGNORED}, which is ignored')
    return labels


def _merge_values(labels: Labels) -> set[int]:
    return set().union(*labels.values()) - {IGNORED}


def _explain_labels(values: set[int], names: Sequence[str] | None, classes: Sequence[str],
                    is_reduced: bool, report: Report) -> None:
    """Report the meaning of labels if it is uncertain."""
    highest = max(values)
    if names is None:
        report.add_warning(
            f'no class names: {format_count(len(classes), "class")} inferred from the highest '
            f'label, {highest}; pass the names of all classes with --classes, including those '
            'that do not occur')
    elif is_reduced and 0 in values:
        report.add_error(
            f'there are {len(names)} names, but labels from 0 to {highest}: if label 0 stands for '
            'unlabeled pixels, pass --label-zero ignore; if it is a class, such as '
            f'{names[0]!r}, pass {highest + 1} names')
    elif not is_reduced and len(names) > 1:
        report.add_warning(
            f'label 0 is assumed to be {names[0]!r}, label 1 {names[1]!r} and so on. If label 0 '
            f'stands for unlabeled pixels, pass --label-zero ignore, and at least {highest} names, '
            'starting with label 1')


def _check_labels(train: Labels, val: Labels, classes: Sequence[str], first: int, ignore_255: bool,
                  report: Report) -> None:
    """Check that every label has a class, and every class a label."""
    unknown = sorted(_merge_values(train | val) - {*range(first + len(classes))})
    if unknown:
        bad = [mask for mask, labels in (train | val).items() if not labels.isdisjoint(unknown)]
        others = f' and {format_count(len(bad) - 1, "other label map")}' if bad[1:] else ''
        hint = '' if first or unknown != [len(classes)] else \
            '; if label 0 stands for unlabeled pixels, pass --label-zero ignore'
        report.add_error(f'{bad[0]}{others}: no class has label {format_names(unknown)}: labels of '
                         f'{format_count(len(classes), "class")} start with {first}{hint}')
    values, has_ignored = _merge_values(train), any(IGNORED in each for each in train.values())
    missing = [name for label, name in enumerate(classes, first) if label not in values]
    if has_ignored and len(values) == 1 and not ignore_255:
        advice = f'pass one name with --classes if 0 is the background and {IGNORED} the class, ' \
            'or two names, the first for 0' if values == {0} else \
            f'if {IGNORED} is a class, save it as another label, such as 1'
        report.add_error(f'training: the only labels are {values.pop()} and {IGNORED}, and mmseg '
                         f'ignores {IGNORED}, so there would be one class: {advice}')
    elif len(classes) < 2:
        report.add_error(f'a segmenter needs at least two classes, got {list(classes)}')
    elif missing and has_ignored and not ignore_255:
        report.add_error(
            f'training: no pixels of {format_names(missing)}, but pixels with label {IGNORED}, '
            'which mmseg ignores: if they belong to a class, save them with its label; if they are '
            'unlabeled, pass --ignore-255')
    elif missing:
        hint = f', or pass --label-zero class if label 0 is {classes[0]!r}' \
            if first and missing == [classes[-1]] else ''
        report.add_warning(f'training: no pixels of {format_names(missing)}, which the model '
                           f'cannot learn: add images that show them{hint}')


def interpret_labels(values: set[int], names: list[str] | None,
                     label_zero: str | None) -> tuple[tuple[str, ...], bool, str]:
    """Return the classes, ``reduce_zero_label`` (label 0 is not a class), and the reason.

    Args:
        values: All labels that occur, except 255.
        names: Names that the user passed.
        label_zero: ``ignore`` or ``class`` if the meaning of label 0 is known.
    """
    highest = max(values)
    if names is not None and len(names) == 1 and label_zero != 'ignore' and highest == 1:
        return ('background', *names), False, 'label 0 is the background, label 1 the only class'
    if label_zero is not None:
        reduce, reason = label_zero == 'ignore', 'set by --label-zero or the data format'
    elif names is not None and highest == len(names):
        reduce, reason = True, f'the {len(names)} classes are the labels 1 to {highest}'
    elif names is not None:
        reduce, reason = False, f'the {len(names)} classes are the labels 0 to {len(names) - 1}'
    elif 0 in values:
        reduce, reason = False, 'it occurs (pass --label-zero ignore if it is not a class)'
    else:
        reduce, reason = True, 'labels start at 1'
    if names is None:
        names = [f'label {value}' for value in range(int(reduce), highest + 1)]
    meaning = 'stands for unlabeled pixels' if reduce else 'is a class'
    return tuple(names), reduce, f'reduce_zero_label={reduce}: label 0 {meaning}: {reason}'
