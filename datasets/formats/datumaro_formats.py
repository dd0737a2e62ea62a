"""Formats that datumaro reads, such as CVAT, KITTI and Open Images; it is an optional package.

https://github.com/open-edge-platform/datumaro
"""
from __future__ import annotations

import os
import re
from collections import defaultdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage, DataIndex, Instance, LabelSet, index_images
from ..options import DataOptions
from ..rle import encode_mask, get_area, get_box
from ..validation.validation_report import Report
from .data_format import (ALL, SPLITS, TEST_LEFT, AnnotationType, DataFormat, ReadContext,
                          compute_box, find_files, find_root_above_images, read_start,
                          remove_number)
from .drawn_label_maps import BACKGROUND_NAMES, draw_label_maps, make_drawing_context
from .instance_formats import open_instances
from .label_conversion import convert_label_maps
from .labelme import join_groups

INSTALL = 'pip install colonnade[datumaro] reads CVAT, KITTI, Open Images and other formats'
UNLABELED = 'DontCare'  # KITTI's class of regions without annotations
NUM_POINTS = 64  # points of the polygon that replaces an ellipse
ANNOTATION_SUFFIXES = ('.xml', '.json', '.csv', '.txt', '.png')
#: formats that are recognized by a file, because datumaro does not
FILES = {'kitti_detection': '**/label_2/*.txt'}
#: formats that are detected: those of detection and segmentation without a reader in Colonnade
DETECTED = (
    'ade20k2017', 'ade20k2020', 'camvid', 'cvat', 'datumaro', 'dota', 'kitti', 'kitti_segmentation',
    'mapillary_vistas', 'mot_seq', 'mots', 'mvtec', 'mvtec_detection', 'mvtec_segmentation',
    'open_images', 'synthia_al', 'synthia_rand', 'synthia_sf', 'vott_csv', 'vott_json',
    'wider_face')  # yapf: disable


def find_datumaro_format(path: Path,
                         annotation_type: AnnotationType,
                         name: str | None = None) -> DataFormat | None:
    """Return the format of a file or folder, or None if datumaro does not know it.

    Args:
        name: Name of the format in datumaro; None detects it.

    Raises:
        ValueError: If datumaro is missing, does not have the format, or detects several.
    """
    if find_spec('datumaro') is None:
        if name is None:
            return None
        raise UserError(f'--datumaro-format requires datumaro: {INSTALL}')
    if annotation_type == 'panoptic':
        return None
    from datumaro.components.environment import DEFAULT_ENVIRONMENT  # takes 0.3 s
    if name is None:
        name = _detect(path, DEFAULT_ENVIRONMENT)
    elif name not in DEFAULT_ENVIRONMENT.importers:
        known = sorted(DEFAULT_ENVIRONMENT.importers)
        raise UserError(f'--datumaro-format {name}: datumaro has no such format. It has: '
                        f'{", ".join(known)}')
    if name is None:
        return None
    label = _describe(name)
    open_format = partial(_open_label_maps, name) if annotation_type == 'labels' else partial(
        open_instances, label, partial(read_datumaro, name))
    return DataFormat(label, annotation_type, '', lambda path: True, open_format)


def _describe(name: str) -> str:
    return f"datumaro's {name}"


def _detect(path: Path, environment: Any) -> str | None:
    if path.is_file():
        return 'cvat' if is_cvat(path) else None
    names = [name for name, pattern in FILES.items() if next(path.glob(pattern), None)]
    names = names or [name for name in environment.detect_dataset(str(path)) if name in DETECTED]
    # A name that another one starts with, such as kitti, is the same format, less specific.
    names = [name for name in names
             if not any(other.startswith(f'{name}_') for other in names)]  # yapf: disable
    if len(names) > 1:
        raise UserError(f'{path} matches several formats of datumaro: {", ".join(names)}. Choose '
                        'one with --datumaro-format')
    return names[0] if names else None


def is_cvat(file: Path) -> bool:
    """Return True if a file has CVAT's XML."""
    return b'<annotations>' in read_start(file)


def read_datumaro(name: str, path: Path, context: ReadContext) -> dict[str, DataIndex]:
    """Return the splits of a dataset in a format of datumaro."""
    images, classes = _read_images(name, path, context)
    for image in (image for found in images.values() for image in found):
        objects = [each for each in image.instances if each.label not in BACKGROUND_NAMES]
        if num_omitted := len(image.instances) - len(objects):
            context.count_dropped('masks of the background are omitted', image.source, num_omitted)
        image.instances = objects
        image.instances = join_groups(image)
    names = [each for each in classes if each not in BACKGROUND_NAMES]
    return {split: index_images(found, names) for split, found in images.items()}


def _open_label_maps(name: str, args: DataOptions, report: Report) -> LabelSet | None:
    if args.boxes_only:
        raise UserError('--boxes-only applies only to detectors')
    label = _describe(name)
    folders = [find_root_above_images(p.parent if p.is_file() else p) for p in args.data]
    context = make_drawing_context(label, folders, args, report)
    splits: list[tuple[Path, list[AnnotatedImage]]] = []
    classes: dict[str, None] = {}
    for folder, path in zip(folders, args.data, strict=True):
        images, names = _read_images(name, path, context)
        classes.update(dict.fromkeys(names))
        splits += [(folder, images[split]) for split in ('train', 'val', ALL) if split in images]
    labels = draw_label_maps(
        label,
        splits,
        args,
        context,
        get_file=lambda image: Path(os.path.abspath(image.path)),
        classes=[*classes],
        meaning=[index_images(images, [*classes]).compute_fingerprint() for _, images in splits])
    return convert_label_maps(labels, args, report)


def _read_images(name: str, path: Path,
                 context: ReadContext) -> tuple[dict[str, list[AnnotatedImage]], list[str]]:
    """Return the images of each split, without that of tests, and the names of the classes."""
    from datumaro import AnnotationType as Types
    from datumaro import Dataset
    try:
        dataset = Dataset.import_from(str(path), name)
        items = list(dataset)
        categories = dataset.categories()
    except Exception as error:  # its readers raise errors of any type
        cause = error.__cause__ or error
        raise UserError(f'{path} cannot be read by datumaro as {name}: '
                        f'{type(cause).__name__}: {cause}') from error
    if Types.label not in categories:
        raise UserError(f'{path} has no classes: datumaro reads {name} without them')
    classes = [label.name for label in categories[Types.label]]
    _count_unread(name, path, context)
    by_split: dict[str, list[Any]] = defaultdict(list)
    for item in sorted(items, key=lambda item: (item.subset, item.id)):
        by_split[_find_split(item.subset)].append(item)
    if 'test' in by_split:
        context.count_dropped(TEST_LEFT, count=len(by_split.pop('test')))
    if 'train' in by_split and (rest := by_split.pop(ALL, [])):
        context.count_dropped('images whose subset is neither training nor validation are not used',
                              f'{rest[0].id} of {rest[0].subset}', len(rest))
    images = {
        split: [image for item in found if (image := _read_item(item, classes, path, context))]
        for split, found in by_split.items()
    }
    used = {image.path for found in images.values() for image in found}
    files = [path] if path.is_file() else find_files(path, ANNOTATION_SUFFIXES)
    context.tables.update(file for file in files if file not in used)
    return {split: found for split, found in images.items() if found}, \
        [each for each in classes if each != UNLABELED]


def _find_split(subset: str) -> str:
    """Return the split that a subset is named after."""
    return next((split for split, names in SPLITS.items() if remove_number(subset) in names), ALL)


def _count_unread(name: str, path: Path, context: ReadContext) -> None:
    """Count the shapes of CVAT that datumaro omits."""
    files = [path] if path.is_file() else find_files(path, ('.xml', ))
    for file in files if name == 'cvat' else ():
        content = file.read_bytes() if is_cvat(file) else b''
        for kind in ('ellipse', 'cuboid', 'skeleton'):
            if count := len(re.findall(b'<%s ' % kind.encode(), content)):
                context.count_dropped(
                    f'shapes of type {kind}, which datumaro does not read, are omitted',
                    context.locate(file), count)


def _find_image(item: Any) -> Path | None:
    """Return the file of an image, which may have another suffix than datumaro assumes."""
    if not (name := getattr(item.media, 'path', None)):
        return None
    file = Path(name)
    files = [file, *(file.with_suffix(end) for each in SUFFIXES for end in (each, each.upper()))]
    return next(filter(Path.is_file, files), None)


def _read_item(item: Any, classes: list[str], path: Path,
               context: ReadContext) -> AnnotatedImage | None:
    """Return an image and its objects, or None after rejecting it."""
    image = _find_image(item)
    if image is None:
        context.reject(path, f'the image of {item.id} does not exist', sample=item.id)
        return None
    size = context.read_size(image)
    if size is None:
        return None
    source = context.locate(image)
    try:
        instances = _read_annotations(item.annotations, classes, source, context)
    except Exception as error:  # masks are decoded here, by code that raises errors of any type
        context.reject(image, f'datumaro cannot read its annotations: {error}')
        return None
    wrong = [each for each in instances if each.mask and each.mask['size'] != [size[1], size[0]]]
    if wrong:
        height, width = wrong[0].mask['size'] if wrong[0].mask else (0, 0)
        context.reject(image, f'has {size[0]} x {size[1]} pixels, but a mask has {width} x '
                       f'{height}')
        return None
    return AnnotatedImage(image, size, source, instances)


def _read_annotations(annotations: Any, classes: list[str], source: str,
                      context: ReadContext) -> list[Instance]:
    from datumaro.components.annotation import Bbox, Ellipse, Mask, Polygon, RotatedBbox
    areas = (Mask, Polygon, Ellipse, RotatedBbox)
    with_area = {(each.group, each.label) for each in annotations
                 if each.group and isinstance(each, areas)}  # yapf: disable
    shapes = [each for each in annotations if isinstance(each, (*areas, Bbox))]
    for each in annotations:
        if each not in shapes:
            context.count_dropped(
                f'annotations of type {each.type.name}, which have no area, are omitted', source)
    instances = []
    for number, each in enumerate(sorted(shapes, key=lambda shape: shape.z_order), 1):
        location = f'{source}: shape {number}'
        if each.label is None:
            raise UserError(f'shape {number} has no class')
        label = classes[each.label]
        if label == UNLABELED:
            context.count_dropped(f'regions that KITTI calls {UNLABELED} are omitted', location)
            continue
        if isinstance(each, Bbox) and (each.group, each.label) in with_area:
            continue  # the box of a shape
        instance = Instance(
            label, (0, 0, 0, 0), [],
            location,
            bool(each.attributes.get('is_crowd')),
            group=each.group or None)
        if isinstance(each, Mask):
            instance.mask = encode_mask(each.image)
            if not get_area(instance.mask):
                context.count_dropped('masks without pixels are omitted', location)
                continue
            left, top, width, height = get_box(instance.mask)
            instance.box = left, top, left + width, top + height
        else:
            points = each.as_polygon(NUM_POINTS) if isinstance(each, Ellipse) else each.as_polygon()
            polygon = np.ravel(points).tolist()
            instance.box = compute_box([polygon])
            instance.polygons = [] if isinstance(each, Bbox) else [polygon]
        instances.append(instance)
    return instances
