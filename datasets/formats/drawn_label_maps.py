"""Label maps drawn from annotated shapes."""
from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError

from ..data_index import AnnotatedImage, DataIndex, Instance, LabelSet
from ..options import DataOptions
from ..rle import decode_rle
from ..validation.label_map_files import IGNORED
from ..validation.validation_report import Report
from .data_format import ReadContext, report_skipped
from .label_map_readers import reject_options, report_test_folders
from .labelme import encode_instance

BACKGROUND, UNLABELED = 'background', '__ignore__'
BACKGROUND_NAMES = (BACKGROUND, '_background_')


@dataclass(frozen=True)
class ShapeReader:
    """Reader that draws label maps: shapes in the order of the annotations, later ones on top."""
    labels: Mapping[str, int]  # name -> label
    instances: Mapping[Path, Sequence[Instance]]  # label file -> shapes

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, of a label file.

        Raises:
            ValueError: If a class is unknown.
        """
        label_map = np.zeros(size[::-1], np.uint8)
        for instance in self.instances[source]:
            if instance.label not in self.labels:
                raise UserError(f'{instance.label!r} is not in --classes')
            label_map[decode_rle(encode_instance(instance, size))] = self.labels[instance.label]
        return label_map


def make_drawing_context(name: str, folders: Collection[Path], args: DataOptions,
                         report: Report) -> ReadContext:
    """Return the context to read annotations from which label maps are drawn.

    Args:
        name: Name of the format, for errors of options that it does not have.
    """
    reject_options(args, name, 'color_map', 'suffixes')
    report_test_folders(args, report)
    return ReadContext(
        Path(os.path.commonpath(list(map(os.path.abspath, folders)))),
        report,
        skips_bad_data=args.on_bad_data == 'skip',
        num_bands=None if args.in_channels is None else 0)


def draw_label_maps(name: str,
                    splits: Sequence[tuple[Path, list[AnnotatedImage]]],
                    args: DataOptions,
                    context: ReadContext,
                    *,
                    get_file: Callable[[AnnotatedImage], Path],
                    classes: Sequence[str] = (),
                    meaning: Any = None) -> LabelSet:
    """Return label maps to be drawn; ``--classes`` names the labels from 1 on.

    Args:
        name: Name of the format.
        splits: Folder of the annotations and annotated images of each split.
        get_file: Returns the label file of an image, which identifies its shapes.
        classes: Names in order. Defaults to those that occur.
        meaning: JSON content that determines the labels, in addition to the label files.
    """
    report, images = context.report, [found for _, found in splits]
    context.count_unused_images(images)
    report_skipped(list(context.skipped.values()), report)
    special = {**dict.fromkeys(BACKGROUND_NAMES, 0), UNLABELED: IGNORED}
    names = {each.label for found in images for image in found for each in image.instances}
    classes = [each for each in args.classes or classes or sorted(names) if each not in special]
    if len(classes) > IGNORED - 1:
        report.add_error(f'{splits[0][0]}: label maps can have at most {IGNORED - 1} classes, got '
                         f'{len(classes)}')
    if args.label_zero is None:
        report.add_warning(f'pixels outside of all shapes become label 0, the class '
                           f'{BACKGROUND!r} (pass --label-zero ignore to exclude them)')
    return LabelSet(
        format=name,
        splits=[_index(folder, found, get_file) for folder, found in splits],
        read=ShapeReader({
            each: label
            for label, each in enumerate(classes, 1)
        } | special, {get_file(image): image.instances
                      for found in images
                      for image in found}),
        classes=classes if args.label_zero == 'ignore' else [BACKGROUND, *classes],
        label_zero=args.label_zero or 'class',
        ignore_255=True,
        meaning=classes if meaning is None else [classes, meaning],
        tables=sorted(context.tables),
        dropped={
            what: occurrences.count
            for what, occurrences in context.dropped.items()
        })


def _index(folder: Path, images: Sequence[AnnotatedImage], get_file: Callable[[AnnotatedImage],
                                                                              Path]) -> DataIndex:
    """Return the images of a split and their label files."""
    files = {image.path: get_file(image) for image in images}
    root = Path(os.path.commonpath([os.path.abspath(path.parent) for path in files])) \
        if files else folder
    label_maps = {os.path.relpath(image, root): file for image, file in sorted(files.items())}
    return DataIndex(root, label_maps=label_maps, masks=folder)
