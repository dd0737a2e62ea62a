"""Pairs of folders, one of images and one of label maps, by the names that people give them."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from .instance_records import SPLITS, split_folders, without_number

IMAGES = ('images', 'image', 'img', 'imgs', 'jpegimages')
MASKS = ('masks', 'mask', 'labels', 'label', 'annotations', 'annotation', 'segmentationclass', 'gt')
BESIDE = ('{}_labels', '{}_label', '{}_masks', '{}_mask', '{}annot', '{}_annotations')
Pair = tuple[Path, Path]  # folders of images and of label maps


def find_folders(root: Path) -> list[Pair]:
    """The folders of images and label maps below a folder.

    Args:
        root: It has ``images`` and ``masks``, with folders of splits within them or around them. Or
            it has ``train`` and ``train_labels`` and so on.

    Returns:
        Training and validation, or one pair for both, or none.

    Raises:
        ValueError: If there is more than one folder that may be meant.
    """
    images, masks = find_child(root, IMAGES), find_child(root, MASKS)
    splits = [_find_pair(root, images, masks, SPLITS[split]) for split in ('train', 'val')]
    found = [pair for pair in splits if pair]
    if not found and images and masks:
        found = [(images, masks)]
    return [pair for pair in found if all(map(has_images, pair))]


def _find_pair(root: Path, images: Path | None, masks: Path | None,
               names: tuple[str, ...]) -> Pair | None:
    """The folders of one split, in one of three layouts."""
    if images and masks:
        pair = find_child(images, names, without_number), find_child(masks, names, without_number)
    elif folder := find_child(root, names, without_number):
        pair = find_child(folder, IMAGES), find_child(folder, MASKS)
        if pair == (None, None):
            beside = [pattern.format(name) for pattern in BESIDE for name in names]
            pair = folder, find_child(root, beside)
    else:
        return None
    return (pair[0], pair[1]) if pair[0] and pair[1] else None


def find_child(folder: Path,
               names: Iterable[str],
               reduced: Callable[[str], str] = str.lower) -> Path | None:
    """The folder in another one that has one of the names, as ``reduced`` changes its own.

    Of several, those that hold images count.

    Raises:
        ValueError: If these are several, too.
    """
    if not folder.is_dir():
        return None
    wanted = set(names)
    found = sorted(
        entry.path for entry in os.scandir(folder)
        if reduced(entry.name) in wanted and entry.is_dir())
    if len(found) > 1:
        found = [path for path in found if has_images(Path(path))]
    if len(found) > 1:
        raise UserError(f'{" and ".join(found)} may be meant: say --masks and --images')
    return Path(found[0]) if found else None


def has_images(folder: Path) -> bool:
    """Whether there is a file below a folder that Pillow may know."""
    return any(name.lower().endswith(SUFFIXES) and not name.startswith('.')
               for _, _, names in os.walk(folder, followlinks=True) for name in names)


def find_test_folders(root: Path) -> list[Path]:
    """Folders of test images, which training does not use."""
    found = (split_folders(place).get('test') for place in {root, find_child(root, IMAGES) or root})
    return [folder for folder in found if folder]
