"""Pascal VOC's layout of label maps: ``SegmentationClass``, and lists in ``ImageSets``."""
from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..custom.file_pairs import list_named
from ..data_index import DataIndex
from ..validation.validation_report import Report
from .color_masks import ColourReader
from .color_tables import ColourTable
from .label_folders import IMAGES, find_child
from .label_sets import LabelSet, read_known_classes

LISTS, MASKS, MASK_END = Path('ImageSets/Segmentation'), 'SegmentationClass', '.png'
BENCHMARK = r'\d{4}_\d{6}'  # names of the benchmark's own images


def find_lists(root: Path) -> list[Path]:
    """The lists of training and validation; the only one there is; or none."""
    if not (root / MASKS).is_dir() or find_child(root, IMAGES) is None:
        return []
    train, val = (root / LISTS / f'{name}.txt' for name in ('train', 'val'))
    if train.is_file() and val.is_file():
        return [train, val]
    found = sorted((root / LISTS).glob('*.txt'))
    return [train] if train.is_file() else found if len(found) == 1 else []


def read_voc_label_maps(root: Path, lists: Sequence[Path], table: ColourTable | None,
                        report: Report) -> LabelSet:
    """Label maps as they are, or to be made of colours.

    Args:
        root: The folder.
        lists: Of training and validation, or one.
        table: Colours of classes, if the label maps are pictures in colours.
        report: Takes what is wrong.

    Raises:
        ValueError: If no image of a list is there.
    """
    images, masks = find_child(root, IMAGES), root / MASKS
    assert images is not None  # lists_of has seen it
    suffixes = (_image_end(images, lists[0]), MASK_END)
    parts, is_benchmark = [], True
    for names in lists:
        found = list_named(images, masks, names, suffixes, report)
        have = set(found.mask_names)
        pairs = {image: image.removesuffix(suffixes[0]) + MASK_END for image in found.image_names}
        for image, mask in pairs.items():
            is_benchmark &= bool(re.fullmatch(BENCHMARK, mask.removesuffix(MASK_END)))
            if mask not in have:
                report.fault(f'{names}: {images / image} has no label map {masks / mask}')
        label_maps = {i: masks / m for i, m in pairs.items() if m in have}
        parts.append(DataIndex(images, label_maps=label_maps, masks=masks))
    classes, palette = read_known_classes('voc') if is_benchmark else (None, None)
    if table:
        classes, palette = table.classes, list(table.colours)
    return LabelSet(
        form='Pascal VOC',
        parts=parts,
        suffixes=suffixes,
        lists=lists,
        read=ColourReader(table) if table else None,
        classes=classes,
        palette=palette,
        zero='class' if classes else None,
        ignore_255=True,
        meaning=table and [table.classes, table.colours, table.unlabelled],
        tables=[table.file] if table and table.file else [])


def _image_end(images: Path, names: Path) -> str:
    """How names of images end, of which a list has the rest.

    Raises:
        ValueError: If there are no such images.
    """
    first = next(filter(None, map(str.strip, names.read_text(encoding='utf-8').split('\n'))), '')
    ends = [
        path.suffix for path in sorted((images / first).parent.glob('*'))
        if path.stem == Path(first).name and path.suffix.lower() in SUFFIXES
    ]
    if not first or not ends:
        raise UserError(f'{names}: there is no image {images / first}.*')
    return ends[0]
