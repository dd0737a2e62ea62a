"""Label maps drawn from LabelMe files."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, DataIndex, Instance, LabelSet
from ..options import DataOptions
from ..rle import decode_rle
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .data_format import ReadContext, find_split_folders, report_skipped
from .label_map_readers import reject_options, report_test_folders
from .labelme import encode_instance, read_labelme_folder

BACKGROUND, UNLABELED = 'background', '__ignore__'
BACKGROUND_NAMES = (BACKGROUND, '_background_')


@dataclass(frozen=True)
class LabelMeReader:
    """Reader that draws label maps: shapes in the order of the file, later ones on top."""
    labels: Mapping[str, int]  # name -> label
    instances: Mapping[Path, Sequence[Instance]]  # LabelMe file -> shapes

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, of a LabelMe file.

        Raises:
            ValueError: If a class is unknown.
        """
        label_map = np.zeros(size[::-1], np.uint8)
        for instance in self.instances[source]:
            if instance.label not in self.labels:
                raise UserError(f'{instance.label!r} is not in --classes')
            label_map[decode_rle(encode_instance(instance, size))] = self.labels[instance.label]
        return label_map


def read_labelme_label_maps(args: DataOptions, report: Report) -> LabelSet:
    """Return label maps to be drawn; ``--classes`` names the labels from 1 on."""
    reject_options(args, 'LabelMe', 'color_map', 'suffixes')
    report_test_folders(args, report)
    folders = [folder for root in args.data for folder in _find_folders(root)]
    root = Path(os.path.commonpath(list(map(os.path.abspath, folders))))
    context = ReadContext(
        root,
        report,
        skips_bad_data=args.on_bad_data == 'skip',
        num_bands=None if args.in_channels is None else 0)
    images = [read_labelme_folder(folder, context) for folder in folders]
    context.count_unused_images(images)
    report_skipped(list(context.skipped.values()), report)
    special = {**dict.fromkeys(BACKGROUND_NAMES, 0), UNLABELED: IGNORED}
    names = {each.label for found in images for image in found for each in image.instances}
    classes = [name for name in args.classes or sorted(names) if name not in special]
    if len(classes) > IGNORED - 1:
        report.add_error(f'{folders[0]}: label maps can have at most {IGNORED - 1} classes, got '
                         f'{len(classes)}')
    if args.label_zero is None:
        report.add_warning(f'pixels outside of all shapes become label 0, the class '
                           f'{BACKGROUND!r} (pass --label-zero ignore to exclude them)')
    return LabelSet(
        format='LabelMe',
        splits=[_index(*each, context) for each in zip(folders, images, strict=True)],
        read=LabelMeReader(
            {
                name: label
                for label, name in enumerate(classes, 1)
            } | special,
            {context.root / image.source: image.instances
             for found in images
             for image in found}),
        classes=classes if args.label_zero == 'ignore' else [BACKGROUND, *classes],
        label_zero=args.label_zero or 'class',
        ignore_255=True,
        meaning=classes,
        dropped={
            what: occurrences.count
            for what, occurrences in context.dropped.items()
        })


def _find_folders(root: Path) -> list[Path]:
    """Return the folders of training and validation, or of training, or the folder itself."""
    splits = find_split_folders(root)
    return [splits[split] for split in ('train', 'val') if split in splits] \
        if 'train' in splits else [root]


def _index(folder: Path, images: Sequence[AnnotatedImage], context: ReadContext) -> DataIndex:
    """Return the images of a folder and their LabelMe files."""
    sources = {image.path: context.root / image.source for image in images}
    root = Path(os.path.commonpath([os.path.abspath(path.parent) for path in sources])) \
        if sources else folder
    label_maps = {os.path.relpath(image, root): file for image, file in sorted(sources.items())}
    return DataIndex(root, label_maps=label_maps, masks=folder)
