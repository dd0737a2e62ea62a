"""Validation of custom label maps, and their dataset settings for a config."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colonnade.common.name_lists import format_names

from ..bit_depth import ImageDepths
from ..validation.image_files import read_image_size, read_label_values
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .file_pairs import (Listing, find_suffixes, list_files, list_named, pair_label_maps,
                         report_empty_folders)
from .instance_datasets import (CustomDataset, find_common_root, find_outside, make_absolute,
                                report_depths, warn_of_overlap)

Labels = dict[Path, frozenset[int]]  # label map -> values in it


def describe_label_maps(masks: list[Path],
                        images: list[Path],
                        suffixes: tuple[str, str] | None,
                        names: list[str] | None,
                        *,
                        label_zero: str | None,
                        ignore_255: bool,
                        report: Report,
                        lists: Sequence[Path] | None = None) -> CustomDataset | None:
    """Return the settings for two folders of label maps, or None if they cannot be used.

    Args:
        masks: Folders of the training and the validation set.
        images: Their folders of images.
        suffixes: Suffixes of images and label maps; None infers them.
        names, label_zero: See :func:`interpret_labels`.
        ignore_255: Whether label 255 stands for unlabeled pixels.
        lists: Text files that list the images of each set. Defaults to all images.
    """
    folders = list(zip(images, masks, strict=True))
    if lists and suffixes:
        listings = [
            list_named(*pair, file, suffixes, report)
            for pair, file in zip(folders, lists, strict=True)
        ]
    else:
        listings = [list_files(*pair, report) for pair in folders]
        report_empty_folders(listings, report)
    if not all(each.image_names and (lists or each.mask_names) for each in listings):
        return None
    suffixes = suffixes or find_suffixes(listings, report)
    if suffixes is None:
        return None
    warn_of_overlap(images, [listing.image_names for listing in listings], report)
    if not lists and images == masks and suffixes[1].endswith(suffixes[0]):
        report.add_error(f'{images[0]}: mmseg would take label maps *{suffixes[1]} for images '
                         f'*{suffixes[0]}: put them into separate folders')
        return None
    depths = ImageDepths()
    train, val = (_read_labels(listing, suffixes, depths, report) for listing in listings)
    report_depths(depths, report)
    values = _merge_values(train) | _merge_values(val)
    if not values:
        if train or val:
            report.add_error(f'every pixel of every label map is {IGNORED}, which mmseg ignores')
        return None
    classes, reduce_zero_label, reason = interpret_labels(values, names, label_zero)
    _check_labels(train, val, classes, int(reduce_zero_label), ignore_255, report)
    if names is None or label_zero is None:
        _explain_labels(values, names, classes, reduce_zero_label, report)
    root = find_common_root([*masks, *images, *(lists or ())])
    datasets = [
        _make_settings(*pair, suffixes, reduce_zero_label, file, root)
        for pair, file in zip(folders, lists or (None, None), strict=True)
    ]
    files = [*(each.image_names for each in listings), *(each.mask_names for each in listings)]
    return CustomDataset(
        classes, (len(train), len(val)),
        root,
        datasets,
        reasons=[reason],
        outside=find_outside(root, [*images, *masks], files))


def _make_settings(images: Path, masks: Path, suffixes: tuple[str, str], reduce_zero_label: bool,
                   ann_file: Path | None, root: Path) -> dict[str, Any]:
    """Return the settings of an mmseg dataset, with paths relative to ``root``."""
    image_path, mask_path = (os.path.relpath(make_absolute(path), root) for path in (images, masks))
    settings = dict(
        type='BaseSegDataset',
        data_prefix=dict(img_path=image_path, seg_map_path=mask_path),
        img_suffix=suffixes[0],
        seg_map_suffix=suffixes[1],
        reduce_zero_label=reduce_zero_label)
    if ann_file:
        settings['ann_file'] = os.path.relpath(make_absolute(ann_file), root)
    return settings


def _read_labels(listing: Listing, suffixes: tuple[str, str], depths: ImageDepths,
                 report: Report) -> Labels:
    """Return the labels in all label maps of a folder, and check the headers of their images."""
    labels = {}
    for image, mask in pair_label_maps(listing, suffixes, report):
        try:
            size = read_image_size(image, depths)
        except OSError as error:
            report.add_error(f'{image} cannot be read: {error}')
            continue
        try:
            labels[mask] = read_label_values(mask, size)
        except (OSError, ValueError) as error:
            report.add_error(f'{mask} cannot be used: {error}')
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
            f'the {len(classes)} classes have no names, and are counted up to the highest label, '
            f'{highest}: pass the names of all classes with --classes, also of labels that do not '
            'occur')
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
    for mask, labels in (train | val).items():
        unknown = sorted(label for label in labels if first + len(classes) <= label < IGNORED)
        if unknown:
            report.add_error(f'{mask}: labels {format_names(unknown)} have no class: there are '
                             f'{len(classes)}, from label {first}')
    values, has_ignored = _merge_values(train), any(IGNORED in each for each in train.values())
    missing = [name for label, name in enumerate(classes, first) if label not in values]
    if has_ignored and len(values) == 1 and not ignore_255:
        advice = f'pass one name with --classes if 0 is the background and {IGNORED} the class, ' \
            'or two names, the first for 0' if values == {0} else \
            f'if {IGNORED} is a class, save it as another label, such as 1'
        report.add_error(f'training: the only labels are {values.pop()} and {IGNORED}, which mmseg '
                         f'ignores, so there would be one class: {advice}')
    elif len(classes) < 2:
        report.add_error(f'a segmenter needs at least two classes, got {list(classes)}')
    elif missing and has_ignored and not ignore_255:
        report.add_error(
            f'training: no pixels of {format_names(missing)}, but pixels of {IGNORED}, which mmseg '
            'ignores: if they are of a class, save them with its label; if they are unlabeled, '
            'pass --ignore-255')
    elif missing:
        report.add_warning(f'training: no pixels of {format_names(missing)}')


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
