"""Readers of label maps from Cityscapes, Roboflow and Pascal VOC."""
from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..custom.file_pairs import list_named
from ..custom.label_maps import IGNORED
from ..data_index import DataIndex
from ..validation.image_files import read_labels
from ..validation.validation_report import Report, abbreviate, find_repeated
from .color_masks import ColorReader
from .color_tables import ColorTable
from .data_format import find_split_folders
from .label_sets import LabelSet, Pair, Reader, find_child, pair_files

IMAGE_END, TRAIN_IDS, IDS = '_leftImg8bit.png', '_gtFine_labelTrainIds.png', '_gtFine_labelIds.png'
MAX_CITYSCAPES_ID = 33
#: Cityscapes IDs of the 19 classes to train, in the order of their train IDs
TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
ROBOFLOW_CLASSES, ROBOFLOW_MASK_END = '_classes.csv', '_mask.png'
VOC_LISTS, VOC_MASKS, VOC_MASK_END = Path('ImageSets/Segmentation'), 'SegmentationClass', '.png'
VOC_NAME = r'\d{4}_\d{6}'  # names of images of the benchmark
IMAGES = ('images', 'image', 'img', 'imgs', 'jpegimages')  # names of folders


def read_known_classes(name: str) -> tuple[tuple[str, ...], list[tuple[int, int, int]]]:
    """Return the classes and colors of a benchmark that mmseg knows."""
    from mmseg.utils import get_classes, get_palette  # takes a second
    return tuple(get_classes(name)), [tuple(color) for color in get_palette(name)]


def find_cityscapes_folders(root: Path) -> list[Pair]:
    """Return the folders of images and label maps for training and validation that exist."""
    pairs = [(root / 'leftImg8bit' / split, root / 'gtFine' / split) for split in ('train', 'val')]
    return [pair for pair in pairs if all(folder.is_dir() for folder in pair)]


def read_cityscapes(folders: list[Pair], report: Report) -> LabelSet:
    """Return label maps with train IDs unchanged, or those with IDs to be converted.

    Raises:
        ValueError: If there are none.
    """
    has_train_ids, has_ids = (
        all(next(masks.rglob(f'*{end}'), None) for _, masks in folders) for end in (TRAIN_IDS, IDS))
    if not has_train_ids and not has_ids:
        raise UserError(f'{folders[0][1]} has no files *{TRAIN_IDS} or *{IDS}')
    suffixes = (IMAGE_END, TRAIN_IDS if has_train_ids else IDS)
    splits, _ = pair_files(folders, suffixes, report)
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


def read_roboflow(folders: list[Path], report: Report) -> LabelSet:
    """Return label maps, which are converted if their values or names require it.

    Raises:
        OSError: If a list of classes cannot be read.
        ValueError: If one is malformed, or they differ.
    """
    tables = [_read_roboflow_classes(folder / ROBOFLOW_CLASSES) for folder in folders]
    if tables[-1] != tables[0]:
        raise UserError(
            f'{folders[0] / ROBOFLOW_CLASSES} and {folders[-1] / ROBOFLOW_CLASSES} must '
            'be the same')
    values = list(tables[0])
    splits = [
        DataIndex(folder, label_maps=_pair_roboflow_files(folder, report), masks=folder)
        for folder in folders
    ]
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


def _pair_roboflow_files(folder: Path, report: Report) -> dict[str, Path]:
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES))
    end = ROBOFLOW_MASK_END
    masks = {name.removesuffix(end): name for name in names if name.endswith(end)}
    images = {Path(name).stem: name for name in names if not name.endswith(end)}
    for stem in sorted(images.keys() - masks.keys()):
        report.add_error(f'{folder / images[stem]} has no label map {stem}{end}')
    for stem in sorted(masks.keys() - images.keys()):
        report.add_warning(f'{folder / masks[stem]} is not used: it has no image')
    return {images[stem]: folder / masks[stem] for stem in sorted(images.keys() & masks.keys())}


def make_renumbering_reader(values: list[int]) -> Reader:
    """Return a reader that renumbers the values of label maps from 0; 255 is kept."""
    table = np.full(256, IGNORED, np.uint8)
    table[values] = range(len(values))

    def read(source: Path, size: tuple[int, int]) -> np.ndarray:
        labels = read_labels(source, size)
        unknown = set(np.unique(labels).tolist()) - {*values, IGNORED}
        if unknown:
            raise UserError(f'labels {sorted(unknown)} are not in {ROBOFLOW_CLASSES}')
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


def read_voc_label_maps(root: Path, lists: Sequence[Path], table: ColorTable | None,
                        report: Report) -> LabelSet:
    """Return label maps unchanged, or color-coded masks to be converted.

    Args:
        root: Folder of the dataset.
        lists: Lists of training and validation images, or a single list.
        table: Table of colors if masks are color-coded.
        report: Collects errors and warnings.

    Raises:
        ValueError: If no image of a list exists.
    """
    images, masks = find_child(root, IMAGES), root / VOC_MASKS
    assert images is not None  # see find_voc_lists
    image_end = _find_image_suffix(images, lists[0])
    splits, is_benchmark = [], True
    for names in lists:
        listing = list_named(images, masks, names, (image_end, VOC_MASK_END), report)
        existing = set(listing.mask_names)
        label_maps = {}
        for image in dict.fromkeys(listing.image_names):
            mask = image.removesuffix(image_end) + VOC_MASK_END
            is_benchmark &= bool(re.fullmatch(VOC_NAME, mask.removesuffix(VOC_MASK_END)))
            if mask in existing:
                label_maps[image] = masks / mask
            else:
                report.add_error(f'{names}: {images / image} has no label map {masks / mask}')
        splits.append(DataIndex(images, label_maps=label_maps, masks=masks))
    classes, palette = read_known_classes('voc') if is_benchmark else (None, None)
    if table:
        classes, palette = table.classes, list(table.colors)
    return LabelSet(
        format='Pascal VOC',
        splits=splits,
        suffixes=(image_end, VOC_MASK_END),
        lists=lists,
        read=ColorReader(table) if table else None,
        classes=classes,
        palette=palette,
        label_zero='class' if classes else None,
        ignore_255=True,
        meaning=table and [table.classes, table.colors, table.unlabeled],
        tables=[table.file] if table else [])


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
