"""LabelMe's polygons as label maps."""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.runtime.images import SUFFIXES

from ..custom.label_maps import IGNORED
from ..data_index import DataIndex
from ..rle import decode_rle, encode_segmentation
from ..validation.validation_report import Report
from .image_pairing import find_image
from .instance_records import Reading, files_below, report_skipped, split_folders
from .label_sets import LabelSet, find_common_folder
from .labelme import load_labelme, looks_like_labelme, read_outline

BACKGROUND, UNLABELLED = 'background', '__ignore__'
NAMES_OF_BACKGROUND = (BACKGROUND, '_background_')


@dataclass(frozen=True)
class Painter:
    """Paints label maps: in the order of the file, later shapes over earlier ones.

    Attributes:
        classes: Names of the labels from 1 on.
    """
    classes: tuple[str, ...]

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """The label map ``(H, W)``, uint8, of a file of LabelMe without faults.

        Args:
            source: The file.
            size: Of the image, width and height.

        Raises:
            ValueError: If the file is of an image of another size, or has another class.
        """
        reading = Reading(source.parent, Report())
        content = load_labelme(source, reading) or {}
        said = content.get('imageWidth') or size[0], content.get('imageHeight') or size[1]
        if said != size:
            raise UserError(f'it is of an image of {said[0]} x {said[1]} pixels, the image has '
                            f'{size[0]} x {size[1]}')
        labels = np.zeros(size[::-1], np.uint8)
        for shape in content['shapes']:
            name, points, _, mask = read_outline(shape, size, reading, str(source))
            if points:
                mask = decode_rle(encode_segmentation([points], size[::-1]))
            if mask is not None:
                labels[mask.astype(bool)] = self._label(name)
        return labels

    def _label(self, name: str) -> int:
        if name == UNLABELLED:
            return IGNORED
        if name in NAMES_OF_BACKGROUND:
            return 0
        if name not in self.classes:
            raise UserError(f'{name!r} is none of --classes')
        return 1 + self.classes.index(name)


def find_labelme_folders(root: Path) -> list[Path]:
    """The folders of training and validation, or of training, or the folder itself."""
    splits = split_folders(root)
    return [splits[split] for split in ('train', 'val') if split in splits] \
        if 'train' in splits else [root]


def read_labelme_label_maps(folders: Sequence[Path],
                            classes: Sequence[str] | None,
                            zero: str | None,
                            report: Report,
                            *,
                            skips_bad_data: bool = False) -> LabelSet:
    """Label maps to be painted.

    Args:
        folders: Of training and validation, or one.
        classes: Names of the labels from 1 on; ``None`` takes all names, in alphabetical order.
        zero: What pixels outside of all shapes are: ``unlabelled``, or a class, the background.
        report: Takes what is wrong, and what is assumed.
        skips_bad_data: Whether images whose shapes cannot be used are left out.
    """
    names: set[str] = set()
    reading = Reading(find_common_folder(folders), report, skips_bad_data=skips_bad_data)
    parts = [_part_of(folder, names, reading) for folder in folders]
    report_skipped(list(reading.skipped.values()), report)
    others = {UNLABELLED, *NAMES_OF_BACKGROUND}
    found = tuple(name for name in classes or sorted(names) if name not in others)
    if len(found) > IGNORED - 1:
        report.fault(f'{folders[0]}: there are {len(found)} classes, label maps have room for '
                     f'{IGNORED - 1}')
    if zero is None:
        report.remark(f'pixels outside of all shapes are label 0, the class {BACKGROUND!r} (--zero '
                      'unlabelled leaves them out)')
    return LabelSet(
        form='LabelMe',
        parts=parts,
        read=Painter(found),
        classes=found if zero == 'unlabelled' else (BACKGROUND, *found),
        zero=zero or 'class',
        ignore_255=True,
        meaning=found,
        lost={
            what: loss.count
            for what, loss in reading.lost.items()
        })


def _part_of(folder: Path, names: set[str], reading: Reading) -> DataIndex:
    """The images and files of a folder; takes up the names of classes and what is lost."""
    sources: dict[Path, Path] = {}
    for file in filter(looks_like_labelme, files_below(folder, ('.json', ), reading)):
        content = load_labelme(file, reading)
        if content is None:
            continue
        named = content.get('imagePath')
        image = find_image(file, named if isinstance(named, str) else None, [], reading)
        if image is None:
            continue
        sources[image] = file
        for place, shape in enumerate(content['shapes'], 1):
            try:
                source = reading.source(file, f'shape {place}')
                name, points, _, mask = read_outline(shape, None, reading, source)
            except ValueError as error:
                reading.reject(file, str(error), f'shape {place}')
                sources.pop(image, None)
                continue
            if points or mask is not None:
                names.add(name)
    others = [image for image in files_below(folder, SUFFIXES) if image not in sources]
    if others:
        reading.report.remark(f'{len(others)} images are not used, which have no file of LabelMe: '
                              f'{format_names(list(map(str, others)))}')
    root = find_common_folder([image.parent for image in sources]) if sources else folder
    return DataIndex(
        root,
        label_maps={
            os.path.relpath(image, root): file
            for image, file in sorted(sources.items())
        },
        masks=folder)
