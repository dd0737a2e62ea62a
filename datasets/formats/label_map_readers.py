"""Readers of label maps from Cityscapes, Roboflow and Pascal VOC."""
from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.runtime.images import SUFFIXES

from ..data_index import DataIndex, LabelReader, LabelSet
from ..options import DataOptions
from ..validation.image_files import read_labels
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report, abbreviate, find_repeated
from .color_masks import choose_color_table, describe_colors
from .data_format import find_split_folders, report_skipped
from .file_pairs import Listing, Pair, find_existing_pairs, pair_files

IMAGE_END, TRAIN_IDS, IDS = '_leftImg8bit.png', '_gtFine_labelTrainIds.png', '_gtFine_labelIds.png'
MAX_CITYSCAPES_ID = 33
#: Cityscapes IDs of the 19 classes to train, in the order of their train IDs
TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
ROBOFLOW_CLASSES, ROBOFLOW_MASK_END = '_classes.csv', '_mask.png'
VOC_LISTS, VOC_MASKS, VOC_MASK_END = Path('ImageSets/Segmentation'), 'SegmentationClass', '.png'
VOC_NAME = r'\d{4}_\d{6}'  # names of images of the benchmark
IMAGES = ('images', 'image', 'img', 'imgs', 'jpegimages')  # names of folders


def reject_options(args: DataOptions, source: str, *names: str) -> None:
    """Raise a ValueError if an option is set whose value the format determines."""
    for name in names:
        if vars(args)[name] is not None:
            raise UserError(f'--{name.replace("_", "-")} has no effect: {source} determines it')


def find_child(folder: Path,
               names: Iterable[str],
               normalize: Callable[[str], str] = str.lower) -> Path | None:
    """Return the subfolder whose normalized name is one of some names, or None."""
    if not folder.is_dir():
        return None
    children = sorted(path for path in folder.iterdir()
                      if normalize(path.name) in names and path.is_dir())
    if len(children) > 1:
        children = list(filter(has_images, children))
    if len(children) > 1:
        raise UserError(f'{folder} has several folders of images or label maps, '
                        f'{" and ".join(map(str, children))}: pass --masks and --images')
    return children[0] if children else None


def has_images(folder: Path) -> bool:
    """Return True if there is an image in or below a folder."""
    return any(name.lower().endswith(SUFFIXES) and not name.startswith('.')
               for _, _, names in os.walk(folder, followlinks=True) for name in names)


def report_test_folders(args: DataOptions, report: Report) -> None:
    """Report folders of the test split, which are not used."""
    for root in args.data:
        for parent in {root, find_child(root, IMAGES) or root}:
            if folder := find_split_folders(parent).get('test'):
                report.add_warning(f'{folder} is not used: it is the test split')


def read_known_classes(name: str) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Return the classes and colors of a benchmark that mmseg knows."""
    from mmseg.utils import get_classes, get_palette  # takes a second
    return tuple(get_classes(name)), [tuple(color) for color in get_palette(name)]


def find_cityscapes_folders(root: Path) -> list[Pair]:
    """Return the folders of images and label maps for training and validation that exist."""
    pairs = [(root / 'leftImg8bit' / split, root / 'gtFine' / split) for split in ('train', 'val')]
    return [pair for pair in pairs if all(folder.is_dir() for folder in pair)]


def read_cityscapes(args: DataOptions, report: Report) -> LabelSet:
    """Return label maps with train IDs unchanged, or those with IDs to be converted."""
    reject_options(args, 'Cityscapes', 'classes', 'label_zero', 'color_map', 'suffixes')
    folders = [pair for root in args.data for pair in find_cityscapes_folders(root)]
    has_train_ids, has_ids = (
        all(next(masks.rglob(f'*{end}'), None) for _, masks in folders) for end in (TRAIN_IDS, IDS))
    if not has_train_ids and not has_ids:
        raise UserError(f'{folders[0][1]} has no files that end in {TRAIN_IDS} or {IDS}')
    suffixes = (IMAGE_END, TRAIN_IDS if has_train_ids else IDS)
    splits, _ = pair_files(folders, suffixes, report, skips_bad_data=args.on_bad_data == 'skip')
    classes, palette = read_known_classes('cityscapes')
    return LabelSet(
        format='Cityscapes',
        splits=splits,
        suffixes=suffixes,
        read=None if has_train_ids else _read_train_ids,
        classes=classes,
        palette=palette,
        label_zero='class',
        ignore_255=True)


def _read_train_ids(source: Path, size: tuple[int, int]) -> np.ndarray:
    ids = read_labels(source, size)
    unknown = ids[(ids > MAX_CITYSCAPES_ID) & (ids != IGNORED)]
    if unknown.size:
        raise UserError(f'Cityscapes IDs must be at most {MAX_CITYSCAPES_ID}, got {unknown.max()}')
    table = np.full(256, IGNORED, np.uint8)
    table[list(TRAINED)] = range(len(TRAINED))
    return table[ids]


def find_roboflow_folders(root: Path) -> list[Path]:
    """Return the folders of training and validation in a download, or the folder itself."""
    splits = find_split_folders(root)
    folders = [splits[split] for split in ('train', 'val') if split in splits] or [root]
    return [
        folder for folder in folders
        if (folder / ROBOFLOW_CLASSES).is_file() and any(folder.glob(f'*{ROBOFLOW_MASK_END}'))
    ]


def read_roboflow(args: DataOptions, report: Report) -> LabelSet:
    """Return label maps, which are converted if their values or names require it."""
    reject_options(args, "Roboflow's masks", 'classes', 'label_zero', 'color_map', 'suffixes')
    report_test_folders(args, report)
    folders = [folder for root in args.data for folder in find_roboflow_folders(root)]
    tables = [_read_roboflow_classes(folder / ROBOFLOW_CLASSES) for folder in folders]
    if tables[-1] != tables[0]:
        raise UserError(
            f'{folders[0] / ROBOFLOW_CLASSES} and {folders[-1] / ROBOFLOW_CLASSES} must '
            'have the same content')
    values = list(tables[0])
    skips_bad_data = args.on_bad_data == 'skip'
    missing = Report() if skips_bad_data else report
    splits = [
        DataIndex(folder, label_maps=_pair_roboflow_files(folder, report, missing), masks=folder)
        for folder in folders
    ]
    report_skipped([each.message for each in missing.findings] * skips_bad_data, report)
    ends = {Path(name).suffix for split in splits for name in split.label_maps}
    is_usable = values == list(range(len(values))) and len(ends) == 1 and ends != {'.png'}
    return LabelSet(
        format="Roboflow's semantic masks",
        splits=splits,
        suffixes=(ends.pop(), ROBOFLOW_MASK_END) if is_usable else None,
        read=None if is_usable else make_renumbering_reader(values),
        classes=list(tables[0].values()),
        label_zero='class',
        ignore_255=True,
        meaning=json.dumps(tables[0]),
        tables=[folder / ROBOFLOW_CLASSES for folder in folders])


def _read_roboflow_classes(file: Path) -> dict[int, str]:
    """Return pixel value -> class name of a ``_classes.csv``."""
    with file.open(encoding='utf-8-sig', newline='') as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    classes: list[tuple[int, str]] = []
    for number, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        if len(row) != 2 or not row[0].isdigit() or int(row[0]) >= IGNORED or not row[1]:
            raise UserError(f'{file}:{number}: expected a pixel value from 0 to {IGNORED - 1} and '
                            f'a class name, got {abbreviate(",".join(row))}')
        classes.append((int(row[0]), row[1]))
    for values in zip(*classes, strict=True):
        if repeated := find_repeated(values):
            raise UserError(f'{file}: {repeated[0]!r} is duplicated')
    if not classes:
        raise UserError(f'{file} has no classes')
    return dict(sorted(classes))


def _pair_roboflow_files(folder: Path, report: Report, missing: Report) -> dict[str, Path]:
    """Return image name -> label map; both are in the same folder."""
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES))
    masks = [name for name in names if name.endswith(ROBOFLOW_MASK_END)]
    images = [name for name in names if not name.endswith(ROBOFLOW_MASK_END)]
    pairs = {name: Path(name).stem + ROBOFLOW_MASK_END for name in images}
    return find_existing_pairs(Listing(folder, folder, images, masks), pairs, report, missing)


def make_renumbering_reader(values: list[int]) -> LabelReader:
    """Return a reader that renumbers the values of label maps from 0; 255 is kept."""
    table = np.full(256, IGNORED, np.uint8)
    table[values] = range(len(values))

    def read(source: Path, size: tuple[int, int]) -> np.ndarray:
        labels = read_labels(source, size)
        unknown = set(np.unique(labels).tolist()) - {*values, IGNORED}
        if unknown:
            raise UserError(f'labels must be {format_names(list(map(str, values)))} or {IGNORED}, '
                            f'got {format_names(list(map(str, sorted(unknown))))}')
        return table[labels]

    return read


def find_voc_lists(root: Path) -> list[Path]:
    """Return the lists of training and validation, the only list, or none."""
    if not (root / VOC_MASKS).is_dir() or find_child(root, IMAGES) is None:
        return []
    train, val = (root / VOC_LISTS / f'{name}.txt' for name in ('train', 'val'))
    if train.is_file() and val.is_file():
        return [train, val]
    lists = sorted((root / VOC_LISTS).glob('*.txt'))
    return [train] if train.is_file() else lists if len(lists) == 1 else []


def read_voc_label_maps(args: DataOptions, report: Report) -> LabelSet:
    """Return label maps unchanged, or color-coded masks to be converted."""
    if len(args.data) > 1:
        raise UserError('--data: pass only one folder in Pascal VOC format: its lists define both '
                        'splits')
    reject_options(args, 'Pascal VOC', 'suffixes')
    root = args.data[0]
    lists, images, masks = find_voc_lists(root), find_child(root, IMAGES), root / VOC_MASKS
    assert images is not None  # see find_voc_lists
    suffixes = (_find_image_suffix(images, lists[0]), VOC_MASK_END)
    splits = [
        DataIndex(
            images, label_maps=_read_list(file, images, masks, suffixes, report), masks=masks)
        for file in lists
    ]
    table = choose_color_table(args, [root], sorted(masks.rglob('*.png')), report)
    settings: dict[str, Any] = dict(ignore_255=True)
    if table:
        settings = describe_colors(table)
    elif args.classes is None and all(
            re.fullmatch(VOC_NAME, mask.stem) for split in splits
            for mask in split.label_maps.values()):
        classes, palette = read_known_classes('voc')
        settings.update(classes=classes, palette=palette, label_zero='class')
    return LabelSet('Pascal VOC', splits, suffixes, lists, **settings)


def _read_list(file: Path, images: Path, masks: Path, suffixes: tuple[str, str],
               report: Report) -> dict[str, Path]:
    """Return image name -> label map of a list of names without suffix, as mmseg reads it."""
    label_maps: dict[str, Path] = {}
    text = file.read_text(encoding='utf-8')
    if text.startswith('\ufeff'):
        report.add_error(f'{file} starts with a byte order mark, which mmseg reads as part of '
                         'the first name: remove it')
        return {}
    for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
        image, mask = (line.strip() + suffix for suffix in suffixes)
        if not line.strip():
            report.add_error(f'{file}:{number}: the line is empty: mmseg cannot read empty lines')
        elif not (images / image).is_file():
            report.add_error(f'{file}:{number}: image {images / image} does not exist')
        elif not (masks / mask).is_file():
            report.add_error(f'{file}:{number}: {images / image} has no label map {masks / mask}')
        elif image in label_maps:
            report.add_warning(f'{file}:{number}: {line.strip()} is duplicated')
        else:
            label_maps[image] = masks / mask
    return label_maps


def _find_image_suffix(images: Path, names: Path) -> str:
    """Return the suffix of the images in a list without suffixes."""
    first = next(filter(None, map(str.strip, names.read_text(encoding='utf-8').split('\n'))), '')
    ends = [
        path.suffix for path in sorted((images / first).parent.glob('*'))
        if path.stem == Path(first).name and path.suffix.lower() in SUFFIXES
    ]
    if not first or not ends:
        raise UserError(f'{names}: {images / first}.* does not exist')
    return ends[0]
