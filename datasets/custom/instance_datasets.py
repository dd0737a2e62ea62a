"""Validation of custom COCO datasets, and their dataset settings for a config."""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.common.name_lists import format_names, suggest_names
from colonnade.settings.findings import Finding

from ..bit_depth import ImageDepths
from ..data_index import DataIndex
from ..path_checks import normalize_path
from ..validation.coco_files import Instances, Usage, check_instances, make_header_check
from ..validation.validation_report import Report

PARTS = ('training', 'validation')


@dataclass
class CustomDataset:
    """Settings of a custom dataset for a config."""
    classes: tuple[str, ...]  # names of the classes
    num_images: tuple[int, int]  # number of images for training and for validation
    root: Path  # folder of the dataset
    datasets: list[dict[str, Any]]  # settings of the training and the validation set
    ann_file: str | None = None  # annotation file of the evaluator, relative to the root
    masks: bool = True  # whether there are masks, not only boxes
    num_things: int | None = None  # number of the first classes, of panoptic things; else None
    # Colors of the classes; None for generated colors.
    palette: Sequence[tuple[int, int, int]] | None = None
    # Explanations of the settings, for comments in the config.
    reasons: list[str] = field(default_factory=list)
    train_images: Sequence[Path] = ()  # files that annotations name
    # Files outside of the root, which training refuses to read.
    outside: list[str] = field(default_factory=list)


def describe_instances(indices: Sequence[DataIndex],
                       classes: list[str] | None,
                       *,
                       masks: bool,
                       filter_cfg: dict,
                       report: Report,
                       num_bands: int | None = None,
                       polygons_only: bool = False) -> CustomDataset | None:
    """Return the settings for two COCO files, or None if they cannot be used.

    Panoptic datasets train on all images, also on those with stuff only.

    Args:
        indices: Indices of training and validation, with the COCO files of their rows.
        classes: Categories to train. Defaults to all.
        masks: Whether to use segmentations, if there are any.
        filter_cfg: mmdet's filter of training images.
        polygons_only: Whether training omits annotations with an RLE.
    """
    ann_files = [index.file for index in indices if index.file]
    images = [index.images for index in indices]
    maps = [index.masks for index in indices if index.masks]
    if maps and classes:
        report.add_error('--classes applies only to instances and label maps: mmdet fails on '
                         'segments of other classes')
        return None
    if masks and not maps and not any(
            isinstance(row, dict) and row.get('segmentation') for index in indices
            for row in index.objects):
        masks = False
        report.add_warning('no annotation has a segmentation: the config trains on boxes only, '
                           'as for Faster R-CNN')
    usages = (Usage(masks, polygons_only), Usage(masks, evaluated=True))
    if maps:
        usages = (Usage(masks=False, is_panoptic=True), ) * 2
        filter_cfg = filter_cfg | dict(filter_empty_gt=False)
    train, val = _check_splits(indices, usages, classes, report, num_bands)
    names = [[image['file_name'] for image in split.images.values()] for split in (train, val)]
    warn_of_overlap(images, names, report)
    num_train = _count_training_images(train, filter_cfg, report)
    if not num_train and train.annotated:
        report.add_error('training: no images are left to train on')

    root = find_common_root(ann_files + images + maps)
    relative = [os.path.relpath(make_absolute(path), root) for path in ann_files + images]
    datasets: list[dict[str, Any]] = [
        dict(type='CocoDataset', ann_file=ann_file, data_prefix=dict(img=folder))
        for ann_file, folder in zip(relative[:2], relative[2:], strict=True)
    ]
    for settings, folder in zip(datasets, maps, strict=bool(maps)):
        settings |= dict(type='CocoPanopticDataset', filter_cfg=dict(filter_empty_gt=False))
        settings['data_prefix']['seg'] = os.path.relpath(make_absolute(folder), root)
    return CustomDataset(
        tuple(train.classes), (num_train, len(val.images)),
        root,
        datasets,
        ann_file=relative[1],
        masks=masks,
        num_things=indices[0].num_things if maps else None,
        outside=find_outside(root, images, names),
        train_images=[images[0] / name for name in names[0]])


def _check_splits(indices: Sequence[DataIndex], usages: Sequence[Usage],
                  classes: Sequence[str] | None, report: Report,
                  num_bands: int | None) -> list[Instances]:
    """Return the content of training and validation with the selected classes only."""
    depths, splits, have_errors = ImageDepths(), list[Instances](), []
    files = [index.file for index in indices if index.file]
    for file, index, usage in zip(files, indices, usages, strict=True):
        num_errors = report.num_errors
        check = make_header_check(index.images, depths, num_bands=num_bands)
        splits.append(check_instances(file, index.rows, report, check_images=check, usage=usage))
        have_errors.append(report.num_errors > num_errors)
    report_depths(depths, report)
    if not _check_classes(splits, classes or [], report):
        have_errors = [True, True]
    if classes:
        for part, split in zip(PARTS, splits, strict=True):
            others = [
                f'{n} {name}' for name, n in split.classes.items() if n and name not in classes
            ]
            if others:
                report.add_warning(
                    f'{part}: objects of other classes are background: {format_names(others)}')
        splits = [split.select_classes(classes) for split in splits]
    for part, split, has_errors in zip(PARTS, splits, have_errors, strict=True):
        empty = [name for name, count in split.classes.items() if not count]
        if empty and len(empty) < len(split.classes):
            report.add_warning(f'{part}: no annotations of {format_names(empty)}')
        elif len(empty) == len(split.classes) and not has_errors:
            report.add_error(f'{part}: no image has a usable annotation')
    return splits


def _check_classes(splits: Sequence[Instances], classes: Sequence[str], report: Report) -> bool:
    """Report classes that do not exist, and splits with different ones; return if all exist."""
    unknown = [name for name in classes if name not in splits[0].classes]
    for name in unknown:
        hint = suggest_names(name, splits[0].classes) or \
            f'the categories are {format_names(list(splits[0].classes))}'
        report.add_error(f'--classes: there is no category {name!r}; {hint}')
    used = [[name for name in split.classes if not classes or name in classes]
            for split in splits]  # yapf: disable
    if used[0] != used[1]:
        report.add_error('training and validation must have the same categories in the same '
                         f'order, got {"; and ".join(map(format_names, used))}')
    return not unknown


def report_depths(depths: ImageDepths, report: Report) -> None:
    """Report what networks do not see of images."""
    for text in depths.find_errors():
        report.add_error(text)
    for text in depths.find_warnings():
        report.add_warning(text)


def _count_training_images(train: Instances, filter_cfg: dict, report: Report) -> int:
    min_size = filter_cfg.get('min_size', 0)
    small = [
        key for key, image in train.images.items()
        if min(image['width'], image['height']) < min_size
    ]
    if small:
        names = [train.images[key]['file_name'] for key in small]
        report.add_warning(f'not used for training: smaller than {min_size} pixels '
                           f'(filter_cfg.min_size): {format_names(names)}')
    used = train.annotated if filter_cfg.get('filter_empty_gt') else train.images
    num_empty = len(train.images) - len(used)
    if num_empty:
        report.add_warning(f'not used for training: images without objects ({num_empty})')
    return len(set(used) - set(small))


def warn_of_overlap(folders: Sequence[Path], names: Sequence[list[str]], report: Report) -> None:
    """Report images that are in training and validation."""
    train, val = ({str(Path(os.path.realpath(folder), name)) for name in own}
                  for folder, own in zip(folders, names, strict=True))  # yapf: disable
    if shared := sorted(train & val):
        text = f'{len(shared)} images are in training and validation: {format_names(shared, 3)}'
        if len(shared) == len(val):
            text += ('; metrics will mean nothing: keep only one of the two splits, and pass '
                     '--val-fraction 0.2')
        report.add(Finding('shared-images', text, (shared[0], )))


def make_absolute(path: Path) -> Path:
    """Return the absolute path, with the links that the user passed if they lead there."""
    absolute = os.path.abspath(path)
    is_same = os.path.exists(absolute) and os.path.samefile(absolute, path)
    return Path(absolute if is_same else os.path.realpath(path))


def find_common_root(paths: Sequence[Path]) -> Path:
    """Return the common folder of files and folders."""
    absolute = [make_absolute(path) for path in paths]
    return Path(os.path.commonpath([path if path.is_dir() else path.parent for path in absolute]))


def find_outside(root: Path, folders: Sequence[Path], names: Sequence[list[str]]) -> list[str]:
    """Return the files outside of the root, which training refuses to read.

    Args:
        folders: Folders below it.
        names: Names of the files of each folder.
    """
    start = f'{normalize_path(str(root))}/'
    pairs = zip(map(make_absolute, folders), names, strict=True)
    paths = (os.path.join(folder, name) for folder, below in pairs for name in below)
    return [path for path in paths if not normalize_path(path).startswith(start)]
