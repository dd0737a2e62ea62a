"""Formats of label maps, for segmenters."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from colonnade.common.errors import UserError

from ..options import DataOptions
from ..validation.image_files import read_label_values, read_labels
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .color_masks import ColorReader, choose_color_table
from .data_format import SPLITS, DataFormat, find_split_folders, remove_number
from .label_map_readers import (IMAGES, VOC_MASKS, find_cityscapes_folders, find_roboflow_folders,
                                find_voc_lists, make_renumbering_reader, read_cityscapes,
                                read_roboflow, read_voc_label_maps)
from .label_sets import LabelSet, Pair, convert_label_set, find_child, has_images, pair_files
from .labelme import is_labelme
from .labelme_label_maps import find_labelme_folders, read_labelme_label_maps

MASKS = ('masks', 'mask', 'labels', 'label', 'annotations', 'annotation', 'segmentationclass', 'gt')
SIBLINGS = ('{}_labels', '{}_label', '{}_masks', '{}_mask', '{}annot', '{}_annotations')
Find = Callable[[DataOptions, Report], LabelSet]


def _open_labels(find: Find, args: DataOptions, report: Report) -> Path | None:
    """Set the options for label maps; see :class:`DataFormat`."""
    if args.boxes_only:
        raise UserError('--boxes-only applies only to detectors')
    return convert_label_set(find(args, report), args, report)


def open_folders(args: DataOptions, report: Report) -> Path | None:
    """Set the options for ``--masks``, with a conversion unless mmseg can read the label maps.

    Returns:
        The folder of a conversion if it was written now.
    """
    pairs = list(zip(args.images, args.masks, strict=True))
    is_required = args.val_fraction or args.color_map or args.on_bad_data == 'skip'
    own_report = report if is_required else Report()
    labels = _read_pairs(pairs, args, (), own_report)
    if not is_required:
        if own_report.num_errors or labels.read is None:  # reported when all label maps are read
            return None
        for text in own_report.warnings:
            report.add_warning(text)
    return convert_label_set(labels, args, report)


def _find_cityscapes(args: DataOptions, report: Report) -> LabelSet:
    _reject_options(args, 'Cityscapes', 'classes', 'label_zero', 'color_map', 'suffixes')
    pairs = [pair for root in args.data for pair in find_cityscapes_folders(root)]
    return read_cityscapes(pairs, report)


def _find_roboflow(args: DataOptions, report: Report) -> LabelSet:
    _reject_options(args, "Roboflow's masks", 'classes', 'label_zero', 'color_map', 'suffixes')
    _report_test_folders(args.data, report)
    folders = [folder for root in args.data for folder in find_roboflow_folders(root)]
    return read_roboflow(folders, report)


def _find_labelme(args: DataOptions, report: Report) -> LabelSet:
    _reject_options(args, 'LabelMe', 'color_map', 'suffixes')
    _report_test_folders(args.data, report)
    folders = [folder for root in args.data for folder in find_labelme_folders(root)]
    classes, args.classes = args.classes, None
    return read_labelme_label_maps(
        folders, classes, args.label_zero, report, skips_bad_data=args.on_bad_data == 'skip')


def _find_voc(args: DataOptions, report: Report) -> LabelSet:
    if len(args.data) > 1:
        raise UserError('--data: pass only one folder in Pascal VOC format, whose lists name both '
                        'splits')
    _reject_options(args, 'Pascal VOC', 'suffixes')
    root = args.data[0]
    masks = sorted((root / VOC_MASKS).rglob('*.png'))
    table = choose_color_table(args.color_map, [root], masks, report) if masks else None
    if table:
        _reject_options(args, 'the table of colors', 'classes', 'label_zero')
    return read_voc_label_maps(root, find_voc_lists(root), table, report)


def _find_folders(args: DataOptions, report: Report) -> LabelSet:
    pairs = [pair for root in args.data for pair in find_folders(root)]
    _report_test_folders(args.data, report)
    return _read_pairs(pairs, args, args.data, report)


def _report_test_folders(roots: Sequence[Path], report: Report) -> None:
    for root in roots:
        for parent in {root, find_child(root, IMAGES) or root}:
            if folder := find_split_folders(parent).get('test'):
                report.add_warning(f'{folder} is not used: it is the test split')


def find_folders(root: Path) -> list[Pair]:
    """Return the folders of images and label maps: training and validation, one pair, or none.

    A dataset has ``images`` and ``masks``, with folders of splits inside or around them, or
    ``train`` and ``train_labels`` and so on.

    Raises:
        ValueError: If several folders match.
    """
    images, masks = find_child(root, IMAGES), find_child(root, MASKS)
    splits = [_find_split_pair(root, images, masks, SPLITS[split]) for split in ('train', 'val')]
    pairs = [pair for pair in splits if pair]
    if not pairs and images and masks:
        pairs = [(images, masks)]
    return [pair for pair in pairs if all(map(has_images, pair))]


def _find_split_pair(root: Path, images: Path | None, masks: Path | None,
                     names: tuple[str, ...]) -> Pair | None:
    if images and masks:
        pair = find_child(images, names, remove_number), find_child(masks, names, remove_number)
    elif folder := find_child(root, names, remove_number):
        pair = find_child(folder, IMAGES), find_child(folder, MASKS)
        if pair == (None, None):
            siblings = [pattern.format(name) for pattern in SIBLINGS for name in names]
            pair = folder, find_child(root, siblings)
    else:
        return None
    return (pair[0], pair[1]) if pair[0] and pair[1] else None


def _read_pairs(pairs: list[Pair], args: DataOptions, roots: Sequence[Path],
                report: Report) -> LabelSet:
    """Return the label maps of folders unchanged, or to be converted from colors or two values."""
    splits, suffixes = pair_files(
        pairs,
        args.suffixes and (args.suffixes[0], args.suffixes[1]),
        report,
        skips_bad_data=args.on_bad_data == 'skip')
    sources = [source for split in splits for source in split.label_maps.values()]
    make_labels = partial(LabelSet, 'images and label maps', splits, suffixes)
    table = choose_color_table(args.color_map, roots, sources, report) if sources else None
    if table:
        _reject_options(args, 'the table of colors', 'classes', 'label_zero')
        return make_labels(
            read=ColorReader(table),
            classes=table.classes,
            palette=table.colors,
            label_zero='class',
            ignore_255=True,
            meaning=[table.classes, table.colors, table.unlabeled],
            tables=[table.file])
    if values := _find_two_values(sources, args):
        low, high = values
        names = ['background', *(args.classes or ())][-2:]
        report.add_warning(f'label maps hold {low} and {high}: {low} becomes label 0, '
                           f'{names[0]!r}, and {high} label 1, {names[1]!r}')
        return make_labels(
            read=make_renumbering_reader([low, high]),
            classes=names,
            label_zero='class',
            ignore_255=True,
            meaning=values)
    return make_labels(read=None if suffixes else read_labels)


def _find_two_values(sources: Sequence[Path], args: DataOptions) -> tuple[int, int] | None:
    """Return the values of the background and of one class, unless they are labels 0 and 1.

    Reading stops as soon as there are more values, or exactly these.
    """
    classes = args.classes or ()
    if len(classes) not in (1, 2) or args.label_zero or args.ignore_255:
        return None
    values: set[int] = set()
    for source in sources:
        with suppress(OSError, ValueError):  # reported when the label map is used
            values |= read_label_values(source, None)
        if len(values) > 2 or values == {0, 1}:
            return None
    low, high = min(values, default=0), max(values, default=0)
    are_labels = (low, high) == (1, len(classes))  # need no conversion
    is_void = low > 0 and high == IGNORED  # one class, and unlabeled pixels
    return None if len(values) < 2 or are_labels or is_void else (low, high)


def _reject_options(args: DataOptions, source: str, *names: str) -> None:
    """Raise a ValueError if an option is set whose value the format determines."""
    for name in names:
        if vars(args)[name] is not None:
            raise UserError(f'--{name.replace("_", "-")} has no effect: {source} determines it')


def _has_only_folders(root: Path) -> bool:
    """Return True if there are folders of images and label maps, and no more specific format."""
    if any(data_format.detect(root) for data_format in SPECIFIC_FORMATS):
        return False
    try:
        return bool(find_folders(root))
    except ValueError:  # several folders match, which is reported when they are read
        return True


def _make_format(name: str, layout: str, detect: Callable[[Path], object],
                 find: Find) -> DataFormat:
    return DataFormat(name, 'labels', layout, lambda root: bool(detect(root)),
                      partial(_open_labels, find))


SPECIFIC_FORMATS = (
    _make_format('Cityscapes', 'leftImg8bit/{train,val}/ and gtFine/{train,val}/',
                 find_cityscapes_folders, _find_cityscapes),
    _make_format('Pascal VOC', 'JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/*.txt',
                 find_voc_lists, _find_voc),
    _make_format("Roboflow's semantic masks", 'train/ and valid/ with *_mask.png and _classes.csv',
                 find_roboflow_folders, _find_roboflow),
    _make_format('LabelMe', '*.json next to images, one per image', is_labelme, _find_labelme),
)
LABEL_MAP_FORMATS: tuple[DataFormat, ...] = (
    *SPECIFIC_FORMATS,
    _make_format(
        'images and label maps',
        'images/ and masks/ (or labels/, annotations/ ...), perhaps with train/ and val/; or '
        'train/, train_labels/, val/ and val_labels/; color-coded masks with a table of colors',
        _has_only_folders, _find_folders))
