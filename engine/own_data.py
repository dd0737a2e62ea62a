"""What a config says of one's own data set, decided from the data."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .data_files import IGNORED, Instances, Report, read_instances, read_label_maps


@dataclass
class OwnData:
    """What the config says of a data set."""
    classes: tuple[str, ...]
    num_images: tuple[int, int]  # to train with, to evaluate on
    root: Path
    datasets: list[dict[str, Any]]  # settings of the training and the validation set
    evaluator: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


def describe_instances(ann_files: list[Path], images: list[Path], chosen: list[str] | None,
                       filter_cfg: dict, report: Report) -> OwnData | None:
    """Two COCO files as training and validation set.

    Args:
        ann_files: JSON of the training and the validation set.
        images: Their folders of images.
        chosen: Categories to train; ``None`` takes all.
        filter_cfg: Which images mmdet leaves out of training.
        report: Takes what is wrong.

    Returns:
        None if they cannot be used.
    """
    read = [
        read_instances(file, folder, report)
        for file, folder in zip(ann_files, images, strict=True)
    ]
    if None in read:
        return None
    train, val = read
    if list(train.classes) != list(val.classes):
        report.faults.append('training and validation must have the same categories in the same '
                             f'order, got {list(train.classes)} and {list(val.classes)}')
    for name in chosen or ():
        if name not in train.classes:
            report.faults.append(f'--classes: {ann_files[0]} has no category {name!r}, only '
                                 f'{", ".join(train.classes)}')
    if images[0] == images[1]:
        _remark_overlap(set(train.sides), set(val.sides), report)
    if chosen:
        train, val = train.restricted(chosen), val.restricted(chosen)
    for split, instances in zip(('training', 'validation'), (train, val), strict=True):
        unseen = [name for name, count in instances.classes.items() if not count]
        if unseen:
            report.remarks.append(f'{split}: no annotations of {", ".join(unseen)}')
    num_train = _usable_images(train, filter_cfg, report)

    root = _common_root(ann_files + images)
    datasets = [
        dict(
            type='CocoDataset',
            ann_file=_relative(file, root),
            data_prefix=dict(img=_relative(folder, root)))
        for file, folder in zip(ann_files, images, strict=True)
    ]
    return OwnData(
        tuple(train.classes), (num_train, len(val.sides)), root, datasets,
        dict(ann_file=str(ann_files[1].resolve())))


def describe_label_maps(masks: list[Path], images: list[Path], suffixes: tuple[str, str] | None,
                        names: list[str] | None, zero: str | None,
                        report: Report) -> OwnData | None:
    """Two folders of label maps as training and validation set.

    Args:
        masks: Folders of the training and the validation set.
        images: Their folders of images.
        suffixes: See :func:`~.data_files.read_label_maps`.
        names: See :func:`meaning_of_labels`, as for ``zero``.
        report: Takes what is wrong.

    Returns:
        None if they cannot be used.
    """
    train, val = (
        read_label_maps(*folders, suffixes, report) for folders in zip(masks, images, strict=True))
    if train.labels and val.labels and train.suffixes != val.suffixes:
        report.faults.append('training and validation must have the same extensions, got '
                             f'{train.suffixes} and {val.suffixes}')
    values = train.values() | val.values()
    if not values:
        return None
    classes, reduce_zero_label, reason = meaning_of_labels(values, names, zero)
    first = int(reduce_zero_label)
    for label_map, labels in (train.labels | val.labels).items():
        beyond = sorted(label for label in labels if first + len(classes) <= label < IGNORED)
        if beyond:
            report.faults.append(f'{label_map}: labels {beyond} have no class: there are '
                                 f'{len(classes)}, from label {first}')
    if len(classes) < 2:
        report.faults.append(f'a segmenter needs at least two classes, got {list(classes)}')
    unseen = [name for label, name in enumerate(classes, first) if label not in train.values()]
    if unseen:
        report.remarks.append(f'training: no pixels of {", ".join(unseen)}')

    root = _common_root(masks + images)
    datasets = [
        dict(
            type='BaseSegDataset',
            data_prefix=dict(img_path=_relative(image, root), seg_map_path=_relative(mask, root)),
            img_suffix=train.suffixes[0],
            seg_map_suffix=train.suffixes[1],
            reduce_zero_label=reduce_zero_label) for mask, image in zip(masks, images, strict=True)
    ]
    return OwnData(classes, (len(train.labels), len(val.labels)), root, datasets, reasons=[reason])


def meaning_of_labels(values: set[int], names: list[str] | None,
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
        reduce, reason = zero == 'unlabelled', 'as --zero says'
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


def _usable_images(train: Instances, filter_cfg: dict, report: Report) -> int:
    """How many images will be trained with."""
    least = filter_cfg.get('min_size', 0)
    small = [name for name, side in train.sides.items() if side < least]
    if small:
        report.remarks.append(f'left out of training: smaller than {least} pixels (filter_cfg.'
                              f'min_size): {", ".join(small)}')
    names = train.populated if filter_cfg.get('filter_empty_gt') else train.sides
    empty = len(train.sides) - len(names)
    if empty:
        report.remarks.append(f'left out of training: {empty} images without objects')
    number = len(set(names) - set(small))
    if not number:
        report.faults.append('training: there is no image left to train with')
    return number


def _remark_overlap(train: set[str], val: set[str], report: Report) -> None:
    """Say which images are in both sets."""
    both = sorted(train & val)
    if both:
        report.remarks.append(f'{len(both)} images are in training and validation: '
                              f'{", ".join(both)}')


def _common_root(paths: list[Path]) -> Path:
    """The folder that all of them are in, absolute."""
    folders = [path.resolve() if path.is_dir() else path.resolve().parent for path in paths]
    return Path(os.path.commonpath(folders))


def _relative(path: Path, root: Path) -> str:
    return str(path.resolve().relative_to(root))
