"""Roboflow's semantic masks: images, masks and ``_classes.csv`` in a folder for each split."""
from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..custom.label_maps import IGNORED
from ..data_index import DataIndex
from ..validation.image_files import read_labels
from ..validation.validation_report import Report, abbreviate, find_repeated
from .instance_records import split_folders
from .label_sets import LabelSet

CLASSES, MASK_END = '_classes.csv', '_mask.png'


def find_roboflow_folders(root: Path) -> list[Path]:
    """The folders of training and validation in a download, or the folder itself."""
    splits = split_folders(root)
    found = [splits[split] for split in ('train', 'val') if split in splits] or [root]
    return [folder for folder in found if is_export(folder)]


def is_export(folder: Path) -> bool:
    return (folder / CLASSES).is_file() and any(folder.glob(f'*{MASK_END}'))


def read_roboflow(folders: list[Path], report: Report) -> LabelSet:
    """What the folders hold; label maps are converted where labels or names ask for it.

    Args:
        folders: Of training and validation.
        report: Takes what is wrong.

    Raises:
        OSError: If a list of classes cannot be read.
        ValueError: If one is wrong, or they differ.
    """
    tables = [read_classes(folder / CLASSES) for folder in folders]
    if tables[-1] != tables[0]:
        raise UserError(f'{folders[0] / CLASSES} and {folders[-1] / CLASSES} must be the same')
    values = list(tables[0])
    parts = [
        DataIndex(folder, label_maps=_sources_in(folder, report), masks=folder)
        for folder in folders
    ]
    ends = {Path(name).suffix for part in parts for name in part.label_maps}
    in_place = values == list(range(len(values))) and len(ends) == 1 and ends != {'.png'}
    return LabelSet(
        form="Roboflow's semantic masks",
        parts=parts,
        suffixes=(ends.pop(), MASK_END) if in_place else None,
        read=None if in_place else renumbering(values),
        classes=list(tables[0].values()),
        zero='class',
        ignore_255=True,
        meaning=json.dumps(tables[0]),
        tables=[folder / CLASSES for folder in folders])


def read_classes(file: Path) -> dict[int, str]:
    """The pixel values of a ``_classes.csv`` and the names of their classes.

    Raises:
        OSError: If it cannot be read.
        ValueError: If a row is wrong, or a value or a name stands there twice.
    """
    with file.open(encoding='utf-8-sig', newline='') as lines:
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    found: list[tuple[int, str]] = []
    for number, row in enumerate(rows[1:], 2):
        if not any(row):
            continue
        if len(row) != 2 or not row[0].isdigit() or int(row[0]) >= IGNORED or not row[1]:
            raise UserError(f'{file}:{number}: wanted a pixel value from 0 to {IGNORED - 1} and '
                            f'the name of a class, got {abbreviate(",".join(row))}')
        found.append((int(row[0]), row[1]))
    for values in zip(*found, strict=True):
        if twice := find_repeated(values):
            raise UserError(f'{file}: {twice[0]!r} stands there more than once')
    if not found:
        raise UserError(f'{file}: there are no classes in it')
    return dict(sorted(found))


def _sources_in(folder: Path, report: Report) -> dict[str, Path]:
    """Images and their masks, which lie beside them."""
    names = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(SUFFIXES))
    masks = {name.removesuffix(MASK_END): name for name in names if name.endswith(MASK_END)}
    images = {Path(name).stem: name for name in names if not name.endswith(MASK_END)}
    for stem in sorted(images.keys() - masks.keys()):
        report.fault(f'{folder / images[stem]} has no label map {stem}{MASK_END}')
    for stem in sorted(masks.keys() - images.keys()):
        report.remark(f'{folder / masks[stem]} is not used: there is no such image')
    return {images[stem]: folder / masks[stem] for stem in sorted(images.keys() & masks.keys())}


def renumbering(values: list[int]) -> Callable[[Path, tuple[int, int]], np.ndarray]:
    """What reads label maps and numbers the values from 0 on; 255 stays."""
    table = np.full(256, IGNORED, np.uint8)
    table[values] = range(len(values))

    def read(source: Path, size: tuple[int, int]) -> np.ndarray:
        labels = read_labels(source, size)
        unknown = set(np.unique(labels).tolist()) - {*values, IGNORED}
        if unknown:
            raise UserError(f'labels {sorted(unknown)} are not in {CLASSES}')
        return table[labels]

    return read
