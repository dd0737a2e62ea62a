"""Annotated shapes: instances for detectors, or drawn as label maps for segmenters."""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.common.name_lists import format_count, format_names, suggest_names

from ..data_index import AnnotatedImage, DataIndex, Instance, LabelSet, index_images
from ..options import DataOptions
from ..rle import decode_rle, encode_segmentation, get_area, get_box, merge_rles
from ..validation.label_map_files import IGNORED
from ..validation.segmentations import MAX_COORDINATE, is_number
from ..validation.validation_report import Report
from .data_format import ALL, ReadContext, compute_box, find_root_above_images, report_skipped
from .label_map_readers import reject_options

BACKGROUND, UNLABELED = 'background', '__ignore__'
BACKGROUND_NAMES = (BACKGROUND, '_background_')
#: labels of names that are no objects
SPECIAL = {**dict.fromkeys(BACKGROUND_NAMES, 0), UNLABELED: IGNORED}
NUM_POINTS = 64  # points of the polygon that replaces a circle or an ellipse


@dataclass
class Shapes:
    """Annotated images of a dataset. Their ``source`` is a file: their own, or the image."""
    images: dict[str, list[AnnotatedImage]]  # split -> images
    classes: Sequence[str] | None = None  # names in order; None if nothing lists them
    folders: Mapping[str, Path] = field(default_factory=dict)  # split -> folder, where it is one

    def check_splits(self, path: Path, report: Report) -> None:
        """Raise a ValueError for a split without usable images, unless their errors say why."""
        for split, images in self.images.items():
            if not images and not report.num_errors:
                part = '' if split == ALL else f' for the split {split}'
                raise UserError(f'{path} has no usable images{part}')


#: (path, context) -> shapes
ReadShapes = Callable[[Path, ReadContext], Shapes]


def index_shapes(read: ReadShapes, path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a dataset: shapes with the same label and group are one object."""
    shapes = read(path, context)
    shapes.check_splits(path, context.report)
    for image in (image for images in shapes.images.values() for image in images):
        for each in image.instances:
            if each.label == UNLABELED:
                context.count_dropped('unlabeled shapes, such as DontCare, are omitted',
                                      each.source)
            elif each.label in BACKGROUND_NAMES:
                context.count_dropped('shapes of the background are omitted', each.source)
        objects = [each for each in image.instances if each.label not in SPECIAL]
        image.instances = _join_groups(objects, image.size)
    classes = shapes.classes
    if classes is not None:
        classes = [name for name in classes if name not in SPECIAL]
    return {split: index_images(each, classes) for split, each in shapes.images.items() if each}


def _join_groups(instances: Sequence[Instance], size: tuple[int, int]) -> list[Instance]:
    objects: dict[Any, Instance] = {}
    for number, instance in enumerate(instances):
        key = number if instance.group is None else (instance.label, instance.group)
        objects[key] = _join(objects[key], instance, size) if key in objects else instance
    return list(objects.values())


def _join(one: Instance, other: Instance, size: tuple[int, int]) -> Instance:
    if not one.mask and not other.mask:
        polygons = get_polygons(one) + get_polygons(other)
        return replace(one, box=compute_box(polygons), polygons=polygons)
    rle = merge_rles([encode_instance(each, size) for each in (one, other)])
    return replace(one, box=get_mask_box(rle), polygons=[], mask=rle)


def get_polygons(instance: Instance) -> list[list[float]]:
    """Return the polygons of an instance without a mask, or the corners of its box."""
    left, top, right, bottom = instance.box
    return instance.polygons or [[left, top, right, top, right, bottom, left, bottom]]


def encode_instance(instance: Instance, size: tuple[int, int]) -> dict[str, Any]:
    """Return the RLE of an instance in an image of a size (width, height)."""
    return instance.mask or encode_segmentation(get_polygons(instance), size[::-1])


def get_mask_box(rle: dict[str, Any]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of an RLE."""
    left, top, width, height = get_box(rle)
    return left, top, left + width, top + height


def set_mask(instance: Instance, rle: dict[str, Any], context: ReadContext) -> Instance | None:
    """Give an instance a mask; return None, and count it, if it is empty."""
    if not get_area(rle):
        context.count_dropped('masks without pixels are omitted', instance.source)
        return None
    instance.mask, instance.box = rle, get_mask_box(rle)
    return instance


def make_ellipse(center: Sequence[float],
                 radii: Sequence[float],
                 theta: float = 0) -> list[list[float]]:
    """Return a polygon ``[[x, y], ...]`` in place of an ellipse turned by ``theta`` radians."""
    angles = np.linspace(0, 2 * math.pi, NUM_POINTS, endpoint=False)
    x, y = radii[0] * np.cos(angles), radii[1] * np.sin(angles)
    sine, cosine = math.sin(theta), math.cos(theta)
    turned = [x * cosine - y * sine, x * sine + y * cosine]
    return (np.stack(turned, 1) + center).tolist()


def is_point(value: Any) -> bool:
    """Return True for ``[x, y]``."""
    return isinstance(value, list) and len(value) == 2 and all(
        is_number(side, MAX_COORDINATE) for side in value)


@dataclass(frozen=True)
class ShapeReader:
    """Reader that draws label maps: crowds, then others in their order, later ones on top."""
    labels: Mapping[str, int]  # name -> label
    instances: Mapping[Path, Sequence[Instance]]  # label file -> shapes

    def __call__(self, source: Path, size: tuple[int, int]) -> np.ndarray:
        """Return the label map ``(H, W)``, uint8, of a label file."""
        label_map = np.zeros(size[::-1], np.uint8)
        for instance in sorted(self.instances[source], key=lambda each: not each.is_crowd):
            label_map[decode_rle(encode_instance(instance, size))] = self.labels[instance.label]
        return label_map


def draw_shapes(name: str, read: ReadShapes, args: DataOptions, report: Report) -> LabelSet:
    """Return label maps to be drawn; ``--classes`` names the labels from 1 on.

    Args:
        name: Name of the format.
        read: Reader of the format.
    """
    reject_options(args, name, 'color_map', 'suffixes')
    roots = [find_root_above_images(p.parent if p.is_file() else p) for p in args.data]
    context = ReadContext(
        Path(os.path.commonpath(roots)),
        report,
        paths=args.data,
        skips_bad_data=args.on_bad_data == 'skip',
        classes=args.classes,
        num_bands=args.num_bands)
    shapes = [read(path, context) for path in args.data]
    for path, each in zip(args.data, shapes, strict=True):
        each.check_splits(path, report)
        if 'train' not in each.images and len(each.images) > 1:
            raise UserError(f'{path}: it is unclear which images are for training')
        if [*each.images] == ['val'] and len(args.data) == 1 and not report.num_errors:
            raise UserError(f'{path} has no training images')
    splits = [(each.images[split], each.folders.get(split)) for each in shapes
              for split in ('train', 'val', ALL) if each.images.get(split)]  # yapf: disable
    images = [image for found, _ in splits for image in found]
    instances = _join_images(images, context)
    context.report_repairs()
    report_skipped(list(context.skipped.values()), report)
    _report_rectangles(images, report)
    listed = [name for each in shapes for name in each.classes or ()]
    classes = _choose_classes(images, listed, args, report)
    meaning: Any = classes
    if context.tables or any(image.source == context.locate(image.path) for image in images):
        # The shapes are not in the label files.
        meaning = [classes, [index_images(found).compute_fingerprint() for found, _ in splits]]
    labels = {name: label for label, name in enumerate(classes, 1)} | SPECIAL
    return LabelSet(
        format=name,
        splits=[_index(*split, context) for split in splits],
        read=ShapeReader(labels, instances),
        classes=classes if args.label_zero == 'ignore' else [BACKGROUND, *classes],
        label_zero=args.label_zero or 'class',
        ignore_255=True,
        meaning=meaning,
        tables=sorted(context.tables),
        annotations=sorted(context.labels),
        dropped={
            what: occurrences.count
            for what, occurrences in context.dropped.items()
        })


def _join_images(images: Sequence[AnnotatedImage],
                 context: ReadContext) -> dict[Path, list[Instance]]:
    """Return the shapes by label file; an image can be listed several times."""
    instances: dict[Path, list[Instance]] = {}
    for image in images:
        source = _find_source(image, context)
        if source in instances:
            context.count_repair('images listed several times: their objects drawn together',
                                 image.source)
        instances.setdefault(source, []).extend(image.instances)
    return instances


def _find_source(image: AnnotatedImage, context: ReadContext) -> Path:
    return Path(os.path.abspath(context.root / image.source))  # ".." can follow a link


def _report_rectangles(images: Sequence[AnnotatedImage], report: Report) -> None:
    found = [each for image in images for each in image.instances
             if not each.polygons and not each.mask]  # yapf: disable
    if found:
        report.add_warning(f'{format_count(len(found), "rectangle")} filled like masks, the first: '
                           f'{found[0].source}: use polygons, or train a detector')


def _choose_classes(images: Sequence[AnnotatedImage], listed: Sequence[str], args: DataOptions,
                    report: Report) -> list[str]:
    """Return the classes from label 1 on: those of ``--classes``, of the format, or of shapes."""
    occurring = {each.label for image in images for each in image.instances}
    names = args.classes or dict.fromkeys(listed) or sorted(occurring)
    classes = [name for name in names if name not in SPECIAL]
    if not classes and not report.num_errors:
        report.add_error(f'{args.data[0]} has no classes but the background')
    if missing := sorted(occurring.difference(classes, SPECIAL)):
        meant = [
            f'; {name!r} is not one: {hint}' for name in classes
            if name not in occurring and (hint := suggest_names(name, missing))
        ]
        report.add_error(f'--classes lacks {format_names(missing)}: a segmenter needs all classes '
                         f'of {args.data[0]}' + ''.join(meant))  # yapf: disable
    if len(classes) > IGNORED - 1:
        report.add_error(f'{args.data[0]}: label maps can have at most {IGNORED - 1} classes, got '
                         f'{len(classes)}')
    if args.label_zero is None:
        report.add_warning(f'pixels outside of all shapes become label 0, the class '
                           f'{BACKGROUND!r} (pass --label-zero ignore to exclude them)')
    return classes


def _index(images: Sequence[AnnotatedImage], folder: Path | None,
           context: ReadContext) -> DataIndex:
    """Return the images of a split, which may have a folder, and their label files."""
    paths = [Path(os.path.abspath(image.path)) for image in images]
    root = Path(os.path.commonpath([path.parent for path in paths]))
    files = [_find_source(image, context) for image in images]
    label_maps = {
        os.path.relpath(path, root): file
        for path, file in sorted(zip(paths, files, strict=True))
    }
    masks = folder or Path(os.path.commonpath([file.parent for file in files]))
    return DataIndex(root, label_maps=label_maps, masks=masks)
