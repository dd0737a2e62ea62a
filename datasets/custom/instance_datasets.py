"""What a config says of one's own data set, decided from the data."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.common.name_lists import format_names
from colonnade.settings.findings import Finding

from ..bit_depth import Depths
from ..path_checks import normalize_path
from ..validation.coco_files import (FIELDS, Instances, Usage, check_headers, check_instances,
                                     find_whole_entries, load_coco)
from ..validation.validation_report import Report


@dataclass
class OwnData:
    """What the config says of a data set."""
    classes: tuple[str, ...]
    num_images: tuple[int, int]  # to train with, to evaluate on
    root: Path
    datasets: list[dict[str, Any]]  # settings of the training and the validation set
    ann_file: str | None = None  # of the evaluator, below the root
    masks: bool = True  # whether there are masks, or boxes alone
    palette: list[tuple[int, int, int]] | None = None  # of the classes; None draws one
    reasons: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # files that are named, and not below the root


def describe_instances(ann_files: list[Path],
                       images: list[Path],
                       chosen: list[str] | None,
                       *,
                       masks: bool,
                       filter_cfg: dict,
                       report: Report,
                       polygons_alone: bool = False) -> OwnData | None:
    """Two COCO files as training and validation set.

    Args:
        ann_files: JSON of the training and the validation set.
        images: Their folders of images.
        chosen: Categories to train; ``None`` takes all.
        masks: Whether to use segmentations, where there are any.
        filter_cfg: Which images mmdet leaves out of training.
        report: Takes what is wrong.
        polygons_alone: Whether training takes polygons and no RLE.

    Returns:
        None if they cannot be used.
    """
    contents = [content for file in ann_files if (content := load_coco(file, report)) is not None]
    if len(contents) < len(ann_files):
        return None
    if masks and not any(map(_has_segmentations, contents)):
        masks = False
        report.remark('no annotation has a segmentation: the config trains boxes alone, as Faster '
                      'R-CNN does')
    usages = Usage(masks, polygons_alone), Usage(masks, evaluated=True)
    depths, found, num_faults = Depths(), [], []
    for file, content, folder, usage in zip(ann_files, contents, images, usages, strict=True):
        before = report.num_faults
        found.append(check_split(file, content, folder, usage, depths, report))
        num_faults.append(report.num_faults - before)
    train, val = found
    report_depths(depths, report)
    if all(map(_has_whole_categories, contents)):  # else names are missing that were reported
        for name in chosen or ():
            if name not in train.classes:
                report.fault(f'--classes: {ann_files[0]} has no category {name!r}, only '
                             f'{format_names(list(train.classes))}')
        names_of_classes = [[name for name in split.classes if not chosen or name in chosen]
                            for split in found]  # yapf: disable
        if names_of_classes[0] != names_of_classes[1]:
            report.fault('training and validation must have the same categories in the same order, '
                         f'got {"; and ".join(map(format_names, names_of_classes))}')
    names = [[image['file_name'] for image in split.images.values()] for split in (train, val)]
    remark_overlap(images, names, report)
    if chosen:
        train, val = train.restricted(chosen), val.restricted(chosen)
    for place, (file, instances) in enumerate(zip(ann_files, (train, val), strict=True)):
        unseen = [name for name, count in instances.classes.items() if not count]
        if len(unseen) == len(instances.classes):
            if not num_faults[place]:  # else they are why
                num_faults[place] += 1
                report.fault(f'{file}: no image has an annotation that could be used')
        elif unseen:
            report.remark(f'{file}: no annotations of {format_names(unseen)}')
    num_train = _usable_images(train, filter_cfg, report)
    if not num_train and not num_faults[0]:
        report.fault('training: there is no image left to train with')

    root = common_root(ann_files + images)
    below = [os.path.relpath(make_absolute(path), root) for path in ann_files + images]
    datasets = [
        dict(type='CocoDataset', ann_file=ann_file, data_prefix=dict(img=folder))
        for ann_file, folder in zip(below[:2], below[2:], strict=True)
    ]
    return OwnData(
        tuple(train.classes), (num_train, len(val.images)),
        root,
        datasets,
        ann_file=below[1],
        masks=masks,
        outside=find_outside(root, images, names))


def check_split(ann_file: Path, content: dict[str, list], folder: Path, usage: Usage,
                depths: Depths, report: Report) -> Instances:
    """Look at a COCO file and at the headers of its images, see :func:`check_instances`."""
    if not os.path.isdir(folder):
        text = f'--images: {folder} is no folder'
        report.add(Finding('missing-file', text, (str(folder), )))
        text = f'{ann_file}: no image was looked at, because its folder does not exist'
        report.add(Finding('skipped-check', text, (str(ann_file), )))
        return check_instances(ann_file, content, report, usage=usage)
    return check_instances(
        ann_file, content, report, look=check_headers(folder, depths), usage=usage)


def report_depths(depths: Depths, report: Report) -> None:
    """Report what networks do not see of images."""
    for text in depths.faults():
        report.fault(text)
    for text in depths.remarks():
        report.remark(text)


def _has_segmentations(content: dict[str, list]) -> bool:
    return any(isinstance(a, dict) and a.get('segmentation') for a in content['annotations'])


def _has_whole_categories(content: dict[str, list]) -> bool:
    """Return True if all categories have what they need."""
    entries, fields = content['categories'], FIELDS['categories']
    whole, _ = find_whole_entries(entries, 'categories', fields, Path(), Report())
    return len(whole) == len(entries)


def _usable_images(train: Instances, filter_cfg: dict, report: Report) -> int:
    """How many images will be trained with."""
    least = filter_cfg.get('min_size', 0)
    small = [
        id for id, image in train.images.items() if min(image['width'], image['height']) < least
    ]
    if small:
        names = [train.images[id]['file_name'] for id in small]
        report.remark(f'left out of training: smaller than {least} pixels (filter_cfg.min_size): '
                      f'{format_names(names)}')
    used = train.annotated if filter_cfg.get('filter_empty_gt') else train.images
    empty = len(train.images) - len(used)
    if empty:
        report.remark(f'left out of training: {empty} images without objects')
    return len(set(used) - set(small))


def remark_overlap(folders: list[Path], names: list[list[str]], report: Report) -> None:
    """Say which images are in training and validation."""
    folders = [Path(os.path.realpath(folder)) for folder in folders]
    train, val = ({str(folder / name)
                   for name in found} for folder, found in zip(folders, names, strict=True))
    both = sorted(train & val)
    if both:
        text = f'{len(both)} images are in training and validation: {format_names(both, 3)}'
        report.add(Finding('shared-images', text, (both[0], )))


def make_absolute(path: Path) -> Path:
    """The path from the root on, by the links that the user named where that leads there too."""
    named = os.path.abspath(path)
    same = os.path.exists(named) and os.path.samefile(named, path)
    return Path(named if same else os.path.realpath(path))


def common_root(paths: list[Path]) -> Path:
    """The folder that all of them are in."""
    return Path(
        os.path.commonpath([
            make_absolute(path) if os.path.isdir(path) else make_absolute(path).parent
            for path in paths
        ]))


def find_outside(root: Path, folders: list[Path], names: list[list[str]]) -> list[str]:
    """Return the paths of files that lead out of the root, which training refuses to read.

    Args:
        root: Folder of the dataset.
        folders: Folders below it.
        names: Names of the files of each, from there on.
    """
    start = f'{normalize_path(str(root))}/'
    pairs = zip(map(make_absolute, folders), names, strict=True)
    paths = (os.path.join(folder, name) for folder, below in pairs for name in below)
    return [path for path in paths if not normalize_path(path).startswith(start)]
