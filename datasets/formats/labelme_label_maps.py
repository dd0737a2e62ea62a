"""Label maps drawn from LabelMe files."""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_names
from colonnade.runtime.images import SUFFIXES

from ..custom.label_maps import IGNORED
from ..data_index import DataIndex
from ..rle import decode_rle, encode_segmentation
from ..validation.validation_report import Report
from .data_format import ReadContext, find_files, find_split_folders, report_skipped
from .label_sets import LabelSet, find_common_folder
from .labelme import find_labelme_image, load_labelme, looks_like_labelme, read_outline

BACKGROUND, UNLABELED = 'background', '__ignore__'
BACKGROUND_NAMES = (BACKGROUND, '_background_')


@dataclass(frozen=True)
class LabelMeReader:
    """Reader that draws label maps: shapes in the order of the file, later ones on top."""
    classes: tuple[str, ...]  # names of the labels from 1 on

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, of a valid LabelMe file.

        Raises:
            ValueError: If its image has another size (width, height), or a class is unknown.
        """
        context = ReadContext(source.parent, Report())
        content = load_labelme(source, context) or {}
        declared = content.get('imageWidth') or size[0], content.get('imageHeight') or size[1]
        if declared != size:
            raise UserError(f'it says {declared[0]} x {declared[1]} pixels, but its image has '
                            f'{size[0]} x {size[1]}')
        labels = np.zeros(size[::-1], np.uint8)
        for shape in content['shapes']:
            name, points, _, mask = read_outline(shape, size, context, str(source))
            if points:
                mask = decode_rle(encode_segmentation([points], size[::-1]))
            if mask is not None:
                labels[mask.astype(bool)] = self._get_label(name)
        return labels

    def _get_label(self, name: str) -> int:
        if name == UNLABELED:
            return IGNORED
        if name in BACKGROUND_NAMES:
            return 0
        if name not in self.classes:
            raise UserError(f'{name!r} is not in --classes')
        return 1 + self.classes.index(name)


def find_labelme_folders(root: Path) -> list[Path]:
    """Return the folders of training and validation, or of training, or the folder itself."""
    splits = find_split_folders(root)
    return [splits[split] for split in ('train', 'val') if split in splits] \
        if 'train' in splits else [root]


def read_labelme_label_maps(folders: Sequence[Path],
                            classes: Sequence[str] | None,
                            label_zero: Literal['ignore', 'class'] | None,
                            report: Report,
                            *,
                            skips_bad_data: bool = False) -> LabelSet:
    """Return label maps to be drawn.

    Args:
        folders: Folders of training and validation, or a single folder.
        classes: Names of the labels from 1 on. Defaults to all names, sorted.
        label_zero: Meaning of pixels outside of shapes: ``ignore``, or ``class`` (background).
        skips_bad_data: Whether to skip images with unusable shapes.
    """
    names: set[str] = set()
    context = ReadContext(find_common_folder(folders), report, skips_bad_data=skips_bad_data)
    splits = [_index_folder(folder, names, context) for folder in folders]
    report_skipped(list(context.skipped.values()), report)
    special = {UNLABELED, *BACKGROUND_NAMES}
    found = tuple(name for name in classes or sorted(names) if name not in special)
    if len(found) > IGNORED - 1:
        report.add_error(f'{folders[0]}: label maps can have at most {IGNORED - 1} classes, got '
                         f'{len(found)}')
    if label_zero is None:
        report.add_warning(f'pixels outside of all shapes become label 0, the class '
                           f'{BACKGROUND!r} (pass --label-zero ignore to exclude them)')
    return LabelSet(
        format='LabelMe',
        splits=splits,
        read=LabelMeReader(found),
        classes=found if label_zero == 'ignore' else (BACKGROUND, *found),
        label_zero=label_zero or 'class',
        ignore_255=True,
        meaning=found,
        dropped={
            what: occurrences.count
            for what, occurrences in context.dropped.items()
        })


def _index_folder(folder: Path, names: set[str], context: ReadContext) -> DataIndex:
    """Return the images of a folder and their files, and add the class names to ``names``."""
    sources: dict[Path, Path] = {}
    for file in filter(looks_like_labelme, find_files(folder, ('.json', ), context.count_link)):
        content = load_labelme(file, context)
        image = find_labelme_image(file, content, context) if content else None
        if content is None or image is None:
            continue
        sources[image] = file
        for number, shape in enumerate(content['shapes'], 1):
            place = f'shape {number}'
            try:
                outline = read_outline(shape, None, context, context.locate(file, place))
            except ValueError as error:
                context.reject(file, str(error), place)
                sources.pop(image, None)
                continue
            if outline.points or outline.mask is not None:
                names.add(outline.label)
    unused = [image for image in find_files(folder, SUFFIXES) if image not in sources]
    if unused:
        context.report.add_warning(f'{len(unused)} images without a LabelMe file are not used: '
                                   f'{format_names(list(map(str, unused)))}')
    root = find_common_folder([image.parent for image in sources]) if sources else folder
    label_maps = {os.path.relpath(image, root): file for image, file in sorted(sources.items())}
    return DataIndex(root, label_maps=label_maps, masks=folder)
