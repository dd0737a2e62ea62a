"""Cityscapes' folders of images and label maps."""
from __future__ import annotations

from pathlib import Path

import numpy as np

from colonnade.common.errors import UserError

from ..custom.label_maps import IGNORED
from ..validation.image_files import read_labels
from ..validation.validation_report import Report
from .label_folders import Pair
from .label_sets import LabelSet, pair_files, read_known_classes

IMAGES, MASKS, SPLITS = 'leftImg8bit', 'gtFine', ('train', 'val')
IMAGE_END, TRAIN_IDS, IDS = '_leftImg8bit.png', '_gtFine_labelTrainIds.png', '_gtFine_labelIds.png'
HIGHEST_ID = 33
#: the benchmark's ids of its 19 classes to train, in the order of their train ids
TRAINED = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


def find_cityscapes_folders(root: Path) -> list[Pair]:
    """The folders of training and validation that are there."""
    pairs = [(root / IMAGES / split, root / MASKS / split) for split in SPLITS]
    return [pair for pair in pairs if all(folder.is_dir() for folder in pair)]


def read_cityscapes(folders: list[Pair], report: Report) -> LabelSet:
    """Label maps of train ids as they are; those of ids are to be converted.

    Args:
        folders: Of training and validation.
        report: Takes what is wrong.

    Raises:
        ValueError: If neither is there.
    """
    has_train_ids, has_ids = (
        all(next(masks.rglob(f'*{end}'), None) for _, masks in folders) for end in (TRAIN_IDS, IDS))
    if not has_train_ids and not has_ids:
        raise UserError(f'{folders[0][1]}: there are no files *{TRAIN_IDS} or *{IDS}')
    suffixes = (IMAGE_END, TRAIN_IDS if has_train_ids else IDS)
    parts, _ = pair_files(folders, suffixes, report)
    classes, palette = read_known_classes('cityscapes')
    return LabelSet(
        form='Cityscapes',
        parts=parts,
        suffixes=suffixes,
        read=None if has_train_ids else train_ids_of,
        classes=classes,
        palette=palette,
        zero='class',
        ignore_255=True)


def train_ids_of(source: Path, size: tuple[int, int]) -> np.ndarray:
    """Cityscapes' label map of ids as one of train ids; ids that are not trained become 255.

    Args:
        source: The label map of ids.
        size: Of the image, width and height.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none of ids.
    """
    ids = read_labels(source, size)
    beyond = ids[(ids > HIGHEST_ID) & (ids != IGNORED)]
    if beyond.size:
        raise UserError(f"Cityscapes' ids end at {HIGHEST_ID}, got {beyond.max()}")
    table = np.full(256, IGNORED, np.uint8)
    table[list(TRAINED)] = range(len(TRAINED))
    return table[ids]
