"""What a config says of one's own data set, decided from the data."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .coco_files import Instances, check_instances, load_coco
from .file_pairs import Listing, find_suffixes, list_files
from .files import Report, listed
from .label_maps import IGNORED, LabelMaps, read_label_maps


@dataclass
class OwnData:
    """What the config says of a data set."""
    classes: tuple[str, ...]
    num_images: tuple[int, int]  # to train with, to evaluate on
    root: Path
    datasets: list[dict[str, Any]]  # settings of the training and the validation set
    ann_file: str | None = None  # of the evaluator, below the root
    masks: bool = True  # whether there are masks, or boxes alone
    reasons: list[str] = field(default_factory=list)


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
    usage = (dict(polygons_alone=polygons_alone), dict(evaluated=True))
    train, val = (
        check_instances(file, content, folder, report, masks=masks, **used)
        for file, content, folder, used in zip(ann_files, contents, images, usage, strict=True))
    if list(train.classes) != list(val.classes):
        report.fault('training and validation must have the same categories in the same order, '
                     f'got {listed(list(train.classes))}; and {listed(list(val.classes))}')
    for name in chosen or ():
        if name not in train.classes:
            report.fault(f'--classes: {ann_files[0]} has no category {name!r}, only '
                         f'{listed(list(train.classes))}')
    names = [[image['file_name'] for image in split.images.values()] for split in (train, val)]
    _remark_overlap(images, names, report)
    if chosen:
        train, val = train.restricted(chosen), val.restricted(chosen)
    for file, instances in zip(ann_files, (train, val), strict=True):
        unseen = [name for name, count in instances.classes.items() if not count]
        if len(unseen) == len(instances.classes):
            report.fault(f'{file}: no image has an annotation that could be used')
        elif unseen:
            report.remark(f'{file}: no annotations of {listed(unseen)}')
    num_train = _usable_images(train, filter_cfg, report)

    root = _common_root(ann_files + images)
    below = [os.path.relpath(absolute(path), root) for path in ann_files + images]
    datasets = [
        dict(type='CocoDataset', ann_file=ann_file, data_prefix=dict(img=folder))
        for ann_file, folder in zip(below[:2], below[2:], strict=True)
    ]
    return OwnData(
        tuple(train.classes), (num_train, len(val.images)),
        root,
        datasets,
        ann_file=below[1],
        masks=masks)


def _has_segmentations(content: dict[str, list]) -> bool:
    return any(isinstance(a, dict) and a.get('segmentation') for a in content['annotations'])


def describe_label_maps(masks: list[Path], images: list[Path], suffixes: tuple[str, str] | None,
                        names: list[str] | None, *, zero: str | None, ignore_255: bool,
                        report: Report) -> OwnData | None:
    """Two folders of label maps as training and validation set.

    Args:
        masks: Folders of the training and the validation set.
        images: Their folders of images.
        suffixes: See :func:`~.label_maps.read_label_maps`; ``None`` finds them.
        names: See :func:`meaning_of_labels`, as for ``zero``.
        ignore_255: Whether the user says that label 255 stands for unlabelled pixels.
        report: Takes what is wrong.

    Returns:
        None if they cannot be used.
    """
    listings = [list_files(*folders, report) for folders in zip(images, masks, strict=True)]
    if not all(listing.image_names and listing.mask_names for listing in listings):
        _report_empty_folders(listings, report)
        return None
    suffixes = suffixes or find_suffixes(listings, report)
    if suffixes is None:
        return None
    _remark_overlap(images, [listing.image_names for listing in listings], report)
    if images == masks and suffixes[1].endswith(suffixes[0]):
        report.fault(f'{images[0]}: mmseg would take label maps *{suffixes[1]} for images '
                     f'*{suffixes[0]}: put them into folders of their own')
        return None
    train, val = (read_label_maps(listing, suffixes, report) for listing in listings)
    values = train.values() | val.values()
    if not values:
        if train.labels or val.labels:
            report.fault(f'every pixel of every label map is {IGNORED}, which mmseg ignores')
        return None
    classes, reduce_zero_label, reason = meaning_of_labels(values, names, zero)
    _check_labels(train, val, classes, int(reduce_zero_label), ignore_255, report)
    if zero is None and not reduce_zero_label and names and len(names) > 1:
        report.remark(f'label 0 is taken for {classes[0]!r}, label 1 for {classes[1]!r} and so on. '
                      'If label 0 stands for unlabelled pixels, say --zero unlabelled, with '
                      f'{max(values)} names or more: those of the labels from 1 on')
    if zero is None and reduce_zero_label and names and 0 in values:
        report.remark(
            f'label 0 is taken for unlabelled pixels, label 1 for {classes[0]!r} and so '
            f'on: there are {len(names)} names and labels up to {max(values)}. If label 0 '
            f'is a class, a name is missing: give {max(values) + 1}, or say --zero class')

    root = _common_root(masks + images)
    datasets = [
        dict(
            type='BaseSegDataset',
            data_prefix=dict(
                img_path=os.path.relpath(absolute(image), root),
                seg_map_path=os.path.relpath(absolute(mask), root)),
            img_suffix=suffixes[0],
            seg_map_suffix=suffixes[1],
            reduce_zero_label=reduce_zero_label) for mask, image in zip(masks, images, strict=True)
    ]
    return OwnData(classes, (len(train.labels), len(val.labels)), root, datasets, reasons=[reason])


def _check_labels(train: LabelMaps, val: LabelMaps, classes: tuple[str, ...], first: int,
                  ignore_255: bool, report: Report) -> None:
    """Whether every label has a class, and every class a label."""
    for label_map, labels in (train.labels | val.labels).items():
        beyond = sorted(label for label in labels if first + len(classes) <= label < IGNORED)
        if beyond:
            report.fault(f'{label_map}: labels {listed(list(map(str, beyond)))} have no class: '
                         f'there are {len(classes)}, from label {first}')
    values = train.values()
    unseen = [name for label, name in enumerate(classes, first) if label not in values]
    if train.ignores() and len(values) == 1 and not ignore_255:
        report.fault(f'training: the labels are {values.pop()} and {IGNORED} alone, and mmseg '
                     f'ignores {IGNORED}: one class would be learnt. Where {IGNORED} is a class, '
                     'save it as another label, such as 1')
    elif len(classes) < 2:
        report.fault(f'a segmenter needs at least two classes, got {list(classes)}')
    elif unseen and train.ignores() and not ignore_255:
        report.fault(f'training: no pixels of {listed(unseen)}, but pixels of {IGNORED}, which '
                     'mmseg ignores. If they are of a class, save them as its label; if they are '
                     'unlabelled, say --ignore-255')
    elif unseen:
        report.remark(f'training: no pixels of {listed(unseen)}')


def _report_empty_folders(listings: list[Listing], report: Report) -> None:
    for listing in listings:
        for folder, names in ((listing.images, listing.image_names), (listing.masks,
                                                                      listing.mask_names)):
            if folder.is_dir() and not names:
                report.fault(f'{folder}: there are no images in it')


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
    small = [
        id for id, image in train.images.items() if min(image['width'], image['height']) < least
    ]
    if small:
        names = [train.images[id]['file_name'] for id in small]
        report.remark(f'left out of training: smaller than {least} pixels (filter_cfg.min_size): '
                      f'{listed(names)}')
    used = train.annotated if filter_cfg.get('filter_empty_gt') else train.images
    empty = len(train.images) - len(used)
    if empty:
        report.remark(f'left out of training: {empty} images without objects')
    number = len(set(used) - set(small))
    if not number:
        report.fault('training: there is no image left to train with')
    return number


def _remark_overlap(folders: list[Path], names: list[list[str]], report: Report) -> None:
    """Say which images are in training and validation."""
    folders = [Path(os.path.realpath(folder)) for folder in folders]
    train, val = ({str(folder / name)
                   for name in found} for folder, found in zip(folders, names, strict=True))
    both = sorted(train & val)
    if both:
        report.remark(f'{len(both)} images are in training and validation: {listed(both)}')


def absolute(path: Path) -> Path:
    """The path from the root on, by the links that the user named where that leads there too."""
    named = os.path.abspath(path)
    same = os.path.exists(named) and os.path.samefile(named, path)
    return Path(named if same else os.path.realpath(path))


def _common_root(paths: list[Path]) -> Path:
    """The folder that all of them are in."""
    return Path(
        os.path.commonpath(
            [absolute(path) if os.path.isdir(path) else absolute(path).parent for path in paths]))
