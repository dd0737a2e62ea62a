"""Formats of label maps, for segmenters."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from colonnade.common.errors import UserError

from ..data_index import LabelSet
from ..options import DataOptions
from ..validation.image_files import read_label_values, read_labels
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .color_masks import choose_color_table, describe_colors
from .data_format import SPLITS, DataFormat, remove_number
from .file_pairs import Pair, pair_files
from .label_conversion import convert_label_maps
from .label_map_readers import (IMAGES, find_child, find_cityscapes_folders, find_roboflow_folders,
                                find_voc_lists, has_images, make_renumbering_reader,
                                read_cityscapes, read_roboflow, read_voc_label_maps,
                                report_test_folders)
from .shape_formats import SHAPE_FORMATS
from .shapes import draw_shapes

MASKS = ('masks', 'mask', 'labels', 'label', 'annotations', 'annotation', 'segmentationclass', 'gt')
SIBLINGS = ('{}_labels', '{}_label', '{}_masks', '{}_mask', '{}annot', '{}_annotations')
Read = Callable[[DataOptions, Report], LabelSet]


def open_label_maps(read: Read, args: DataOptions, report: Report) -> LabelSet | None:
    """Return label maps of training and validation, converted where needed; None after an error."""
    if args.boxes_only:
        raise UserError('--boxes-only applies only to detectors')
    return convert_label_maps(read(args, report), args, report)


def read_folders(args: DataOptions, report: Report) -> LabelSet:
    """Return the label maps in folders unchanged, or to be converted from colors or two values."""
    if args.masks:
        pairs = list(zip(args.images, args.masks, strict=True))
    else:
        pairs = [pair for root in args.data for pair in find_folders(root)]
        report_test_folders(args, report)
    splits, suffixes = pair_files(
        pairs,
        args.suffixes and (args.suffixes[0], args.suffixes[1]),
        report,
        skips_bad_data=args.on_bad_data == 'skip',
        image_suffix=args.band_suffixes[0] if args.band_suffixes else '')
    sources = [source for split in splits for source in split.label_maps.values()]
    make_labels = partial(LabelSet, 'images and label maps', splits, suffixes)
    if table := choose_color_table(args, args.data, sources, report):
        return make_labels(**describe_colors(table))
    if values := _find_two_values(sources, args):
        low, high = values
        names = ['background', *(args.classes or ())][-2:]
        report.add_warning(f'label maps contain {low} and {high}: {low} becomes label 0, '
                           f'{names[0]!r}, and {high} label 1, {names[1]!r}')
        return make_labels(
            read=make_renumbering_reader([low, high]),
            classes=names,
            label_zero='class',
            ignore_255=True,
            meaning=values)
    return make_labels(read=None if suffixes or not splits else read_labels)


def find_folders(root: Path) -> list[Pair]:
    """Return the folders of images and label maps: training and validation, one pair, or none.

    A dataset has ``images`` and ``masks``, with folders of splits inside or around them, or
    ``train`` and ``train_labels`` and so on.
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


def _has_only_folders(root: Path) -> bool:
    """Return True if there are folders of images and label maps, and no more specific format."""
    if any(data_format.detect(root) for data_format in SPECIFIC_FORMATS):
        return False
    try:
        return bool(find_folders(root))
    except ValueError:  # several folders match, which is reported when they are read
        return True


def _make_format(name: str, layout: str, detect: Callable[[Path], object],
                 read: Read) -> DataFormat:
    return DataFormat(name, 'labels', layout, lambda root: bool(detect(root)),
                      partial(open_label_maps, read))


SPECIFIC_FORMATS = (
    _make_format('Cityscapes', 'leftImg8bit/{train,val}/ and gtFine/{train,val}/',
                 find_cityscapes_folders, read_cityscapes),
    _make_format('Pascal VOC', 'JPEGImages/, SegmentationClass/ and ImageSets/Segmentation/*.txt',
                 find_voc_lists, read_voc_label_maps),
    _make_format("Roboflow's semantic masks", 'train/ and valid/ with *_mask.png and _classes.csv',
                 find_roboflow_folders, read_roboflow),
    *(_make_format(name, layout, detect, partial(draw_shapes, name, read))
      for name, layout, detect, read in SHAPE_FORMATS),
)
LABEL_MAP_FORMATS: tuple[DataFormat, ...] = (
    *SPECIFIC_FORMATS,
    _make_format(
        'images and label maps',
        'images/ and masks/ (or labels/, annotations/ ...), perhaps with train/ and val/; or '
        'train/, train_labels/, val/ and val_labels/; color-coded masks with a table of colors',
        _has_only_folders, read_folders))
