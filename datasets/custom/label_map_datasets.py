"""What a config says of one's own label maps, decided from the data."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from colonnade.common.name_lists import format_names

from ..bit_depth import Depths
from ..validation.validation_report import Report
from .file_pairs import Listing, find_suffixes, list_files, list_named
from .instance_datasets import (OwnData, common_root, find_outside, make_absolute, remark_overlap,
                                report_depths)
from .label_maps import IGNORED, LabelMaps, read_label_maps


def describe_label_maps(masks: list[Path],
                        images: list[Path],
                        suffixes: tuple[str, str] | None,
                        names: list[str] | None,
                        *,
                        zero: str | None,
                        ignore_255: bool,
                        report: Report,
                        lists: list[Path] | None = None) -> OwnData | None:
    """Two folders of label maps as training and validation set.

    Args:
        masks: Folders of the training and the validation set.
        images: Their folders of images.
        suffixes: See :func:`~.label_maps.read_label_maps`; ``None`` finds them.
        names: See :func:`interpret_labels`, as for ``zero``.
        ignore_255: Whether the user says that label 255 stands for unlabelled pixels.
        report: Takes what is wrong.
        lists: Text files that name the images of each set; ``None`` takes all.

    Returns:
        None if they cannot be used.
    """
    folders = list(zip(images, masks, strict=True))
    listings = _list_files(folders, suffixes, lists, report)
    if not all(found.image_names and (lists or found.mask_names) for found in listings):
        return None
    suffixes = suffixes or find_suffixes(listings, report)
    if suffixes is None:
        return None
    remark_overlap(images, [listing.image_names for listing in listings], report)
    if not lists and images == masks and suffixes[1].endswith(suffixes[0]):
        report.fault(f'{images[0]}: mmseg would take label maps *{suffixes[1]} for images '
                     f'*{suffixes[0]}: put them into folders of their own')
        return None
    depths = Depths()
    train, val = (read_label_maps(listing, suffixes, depths, report) for listing in listings)
    report_depths(depths, report)
    values = train.values() | val.values()
    if not values:
        if train.labels or val.labels:
            report.fault(f'every pixel of every label map is {IGNORED}, which mmseg ignores')
        return None
    classes, reduce_zero_label, reason = interpret_labels(values, names, zero)
    _check_labels(train, val, classes, int(reduce_zero_label), ignore_255, report)
    if names is None:
        report.remark(f'nothing names the {len(classes)} classes, which are counted up to the '
                      f'highest label that occurs, {max(values)}: say --classes with all names, '
                      'also of labels that do not occur')
    elif zero is None:
        _remark_on_zero(values, names, reduce_zero_label, report)
    root = common_root([*masks, *images, *(lists or ())])
    datasets = [
        _dataset(*pair, suffixes, reduce_zero_label, ann_file, root)
        for pair, ann_file in zip(folders, lists or (None, None), strict=True)
    ]
    named = [*(found.image_names for found in listings), *(found.mask_names for found in listings)]
    return OwnData(
        classes, (len(train.labels), len(val.labels)),
        root,
        datasets,
        reasons=[reason],
        outside=find_outside(root, [*images, *masks], named))


def _dataset(images: Path, masks: Path, suffixes: tuple[str, str], reduce_zero_label: bool,
             ann_file: Path | None, root: Path) -> dict[str, Any]:
    """The settings of a data set of mmseg, whose paths start from ``root``."""
    settings = dict(
        type='BaseSegDataset',
        data_prefix=dict(
            img_path=os.path.relpath(make_absolute(images), root),
            seg_map_path=os.path.relpath(make_absolute(masks), root)),
        img_suffix=suffixes[0],
        seg_map_suffix=suffixes[1],
        reduce_zero_label=reduce_zero_label)
    if ann_file:
        settings['ann_file'] = os.path.relpath(make_absolute(ann_file), root)
    return settings


def _list_files(folders: list[tuple[Path, Path]], suffixes: tuple[str, str] | None,
                lists: list[Path] | None, report: Report) -> list[Listing]:
    """The files of both sets: those in lists, or all."""
    if lists and suffixes:
        return [
            list_named(*pair, names, suffixes, report)
            for pair, names in zip(folders, lists, strict=True)
        ]
    listings = [list_files(*pair, report) for pair in folders]
    report_empty_folders(listings, report)
    return listings


def _remark_on_zero(values: set[int], names: list[str], reduced: bool, report: Report) -> None:
    """Say what label 0 is taken for, where that is not certain."""
    if reduced and 0 in values:
        report.fault(
            f'there are {len(names)} names, and labels from 0 to {max(values)}: if label 0 stands '
            f'for unlabelled pixels, pass --zero unlabelled; if it is a class, such as '
            f'{names[0]!r}, a name is missing: pass {max(values) + 1}')
    elif not reduced and len(names) > 1:
        report.remark(f'label 0 is taken for {names[0]!r}, label 1 for {names[1]!r} and so on. '
                      'If label 0 stands for unlabelled pixels, say --zero unlabelled, with '
                      f'{max(values)} names or more: those of the labels from 1 on')


def _check_labels(train: LabelMaps, val: LabelMaps, classes: tuple[str, ...], first: int,
                  ignore_255: bool, report: Report) -> None:
    """Whether every label has a class, and every class a label."""
    for label_map, labels in (train.labels | val.labels).items():
        beyond = sorted(label for label in labels if first + len(classes) <= label < IGNORED)
        if beyond:
            report.fault(
                f'{label_map}: labels {format_names(list(map(str, beyond)))} have no class: '
                f'there are {len(classes)}, from label {first}')
    values = train.values()
    unseen = [name for label, name in enumerate(classes, first) if label not in values]
    if train.ignores() and len(values) == 1 and not ignore_255:
        advice = f'--classes with one name takes 0 for the background and {IGNORED} for that ' \
            'class; with two names, the first is that of 0' if values == {0} else \
            f'Where {IGNORED} is a class, save it as another label, such as 1'
        report.fault(f'training: the labels are {values.pop()} and {IGNORED} alone, and mmseg '
                     f'ignores {IGNORED}: one class would be learnt. {advice}')
    elif len(classes) < 2:
        report.fault(f'a segmenter needs at least two classes, got {list(classes)}')
    elif unseen and train.ignores() and not ignore_255:
        report.fault(
            f'training: no pixels of {format_names(unseen)}, but pixels of {IGNORED}, which '
            'mmseg ignores. If they are of a class, save them as its label; if they are '
            'unlabelled, say --ignore-255')
    elif unseen:
        report.remark(f'training: no pixels of {format_names(unseen)}')


def report_empty_folders(listings: list[Listing], report: Report) -> None:
    """Report folders in which there are no images or label maps."""
    for listing in listings:
        for folder, names in ((listing.images, listing.image_names), (listing.masks,
                                                                      listing.mask_names)):
            if folder.is_dir() and not names:
                report.fault(f'{folder}: there are no images in it')


def interpret_labels(values: set[int], names: list[str] | None,
                     zero: str | None) -> tuple[tuple[str, ...], bool, str]:
    """The classes, whether label 0 is none of them (``reduce_zero_label``), and why.

    Args:
        values: All labels that occur, but 255.
        names: What the user calls them.
        zero: What the user says that label 0 is.
    """
    highest = max(values)
    if names is not None and len(names) == 1 and zero != 'unlabelled' and highest == 1:
        return ('background', *names), False, 'label 0 is the background: one class, label 1'
    if zero is not None:
        reduce, reason = zero == 'unlabelled', 'as --zero or the form of the data says'
    elif names is not None and highest == len(names):
        reduce, reason = True, f'the {len(names)} classes are the labels 1 to {highest}'
    elif names is not None:
        reduce = False
        reason = f'the {len(names)} classes are the labels 0 to {len(names) - 1}'
    elif 0 in values:
        reduce, reason = False, 'it occurs, and nothing says that it is not (--zero unlabelled)'
    else:
        reduce, reason = True, 'labels start at 1'
    if names is None:
        names = [f'label {value}' for value in range(int(reduce), highest + 1)]
    meaning = 'stands for unlabelled pixels' if reduce else 'is a class'
    return tuple(names), reduce, f'reduce_zero_label={reduce}: label 0 {meaning}: {reason}'
