"""Formats that datumaro reads, such as CVAT, KITTI and Open Images; it is an optional package.

https://github.com/open-edge-platform/datumaro
"""
from __future__ import annotations

import csv
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.runtime.images import SUFFIXES

from ..data_index import AnnotatedImage, Instance
from ..options import DataOptions
from ..rle import encode_mask
from ..validation.segmentations import MAX_COORDINATE, is_number
from ..validation.validation_report import Report, abbreviate, find_repeated
from .data_format import (ALL, SPLITS, TEST_LEFT, AnnotationType, DataFormat, OpenedData,
                          ReadContext, compute_box, find_files, read_start, remove_number)
from .instance_formats import open_instances
from .label_map_formats import open_label_maps
from .shapes import NUM_POINTS, UNLABELED, Shapes, draw_shapes, index_shapes, set_mask

INSTALL = 'pip install datumaro'
TABLES, MASKS = ('.xml', '.json', '.csv', '.txt'), ('.png', )  # suffixes of annotations
#: formats that are recognized by a file, because datumaro does not
FILES = {'kitti_detection': '**/label_2/*.txt'}
#: formats that are detected: those of detection and segmentation without a reader in Colonnade
DETECTED = ('ade20k2017', 'ade20k2020', 'camvid', 'cvat', 'datumaro', 'dota', 'kitti',
            'kitti_segmentation', 'mapillary_vistas', 'mot_seq', 'mots', 'open_images',
            'synthia_al', 'synthia_rand', 'synthia_sf', 'vott_csv', 'vott_json',
            'wider_face')  # yapf: disable
#: classes of pixels without annotations, in lower case: KITTI's, CamVid's and others
VOID = ('dontcare', 'void', 'unlabeled', 'unlabelled')
Drawn = tuple[int, int, int, Instance]  # order, position in the file, group (0 if none), object
MAX_BOX_ERROR = 2  # pixels between a box and the shape that it encloses


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
        raise UserError(f'--datumaro-format requires another package: {INSTALL}')
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
    label, read = f"datumaro's {name}", partial(read_datumaro, name)
    open_format: Callable[[DataOptions, Report],
                          OpenedData] = partial(open_instances, label, partial(index_shapes, read))
    if annotation_type == 'labels':
        open_format = partial(open_label_maps, partial(draw_shapes, label, read))
    return DataFormat(label, annotation_type, '', lambda path: True, open_format)


def _detect(path: Path, environment: Any) -> str | None:
    if path.is_file():
        return 'cvat' if is_cvat(path) else None
    names = [name for name, pattern in FILES.items() if next(path.glob(pattern), None)]
    names += [name for name in environment.detect_dataset(str(path)) if name in DETECTED]
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


def read_datumaro(name: str, path: Path, context: ReadContext) -> Shapes:
    """Return the shapes of a dataset in a format of datumaro."""
    items, classes = _import(name, path, context)
    if name == 'cvat':
        _count_unread(path, len(items), context)
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
    used = [image.path for found in images.values() for image in found]
    if repeated := find_repeated(used):
        raise UserError(f'datumaro lists {repeated[0]} several times as {name}: pass a more '
                        'specific --datumaro-format')
    context.owners.update(dict.fromkeys(used, path))
    context.count_unused_images(images.values())
    context.tables.update(_find_annotations(path, images.values()))
    # The files of Open Images list thousands of classes.
    return Shapes(images, None if name == 'open_images' else [
        each for each in classes if each != UNLABELED])  # yapf: disable


def _find_annotations(path: Path, splits: Iterable[list[AnnotatedImage]]) -> set[Path]:
    """Return the files that a conversion depends on, without the images of any split."""
    if path.is_file():
        return {path}
    images = [image for found in splits for image in found]
    files = find_files(path, TABLES)
    if any(each.mask for image in images for each in image.instances):
        folders = {os.path.abspath(image.path.parent) for image in images}
        files += [file for file in find_files(path, MASKS)
                  if os.path.abspath(file.parent) not in folders]  # yapf: disable
    return set(files)


def _import(name: str, path: Path, context: ReadContext) -> tuple[list[Any], list[str]]:
    """Return the items of a dataset, and the names of its classes."""
    from datumaro import AnnotationType as Types
    from datumaro import Dataset
    try:
        with _collect_warnings(context):
            dataset = Dataset.import_from(str(path), name)
            items = list(dataset)
            categories = dataset.categories()
    except Exception as error:  # its readers raise errors of any type
        cause = error.__cause__ or error
        text = f'{path} cannot be read by datumaro as {name}: {type(cause).__name__}: {cause}'
        if type(cause).__name__ == 'ConflictingCategoriesError':
            text += '. Pass training and validation as two paths'
        if 'Cannot find an image' in text:
            text += ' Put all images into the folder images next to the XML file'
        raise UserError(text) from error
    if Types.label not in categories:
        raise UserError(f'{path} has no classes: datumaro reads {name} without them')
    classes = [label.name for label in categories[Types.label]]
    if name == 'open_images':
        names = _read_open_images_classes(path)
        classes = [names.get(each, each) for each in classes]
    return items, [UNLABELED if each.lower() in VOID else each for each in classes]


@contextmanager
def _collect_warnings(context: ReadContext) -> Iterator[None]:
    """Context manager that counts datumaro's warnings, one for each image, instead of logging."""
    root, handler = logging.getLogger(), logging.NullHandler()

    def count(record: logging.LogRecord) -> bool:
        context.count_dropped('warnings of datumaro', record.getMessage())
        return False

    root.addHandler(handler)  # without any, the first message would add one for good
    root.addFilter(count)
    try:
        yield
    finally:
        root.removeFilter(count)
        root.removeHandler(handler)


def _read_open_images_classes(path: Path) -> dict[str, str]:
    """Return the display name of each identifier, such as ``/m/01g317``."""
    names: dict[str, str] = {}
    for file in sorted(path.glob('**/*class-descriptions*.csv')):
        with file.open(encoding='utf-8', newline='') as handle:
            names.update((row[0], row[1]) for row in csv.reader(handle) if len(row) > 1)
    return names


def _find_split(subset: str) -> str:
    """Return the split that a subset is named after."""
    return next((split for split, names in SPLITS.items() if remove_number(subset) in names), ALL)


def _count_unread(path: Path, num_items: int, context: ReadContext) -> None:
    """Count the shapes and images of CVAT that datumaro omits."""
    num_images, has_tracks = 0, False
    for file in [path] if path.is_file() else find_files(path, ('.xml', )):
        content = file.read_bytes() if is_cvat(file) else b''
        num_images += content.count(b'<image ')
        has_tracks |= b'<track ' in content
        for kind in ('ellipse', 'cuboid', 'skeleton'):
            if count := content.count(f'<{kind} '.encode()):
                context.count_dropped(
                    f'shapes of type {kind}, which datumaro does not read, are omitted',
                    context.locate(file), count)
    if num_images > num_items and not has_tracks:
        context.count_dropped(
            'images that datumaro does not read are omitted, such as those of subsets that the '
            'header does not list', context.locate(path), num_images - num_items)


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
        name = getattr(item.media, 'path', None) or item.id
        context.reject(path, f'its image {name} does not exist', sample=str(name))
        return None
    size = context.read_size(image)
    if size is None:
        return None
    declared = item.media.size if item.media.has_size else None  # in the annotations
    if declared and sorted(declared) != sorted(size):  # EXIF tags can exchange them
        context.reject(path, f'says {declared[1]} x {declared[0]} pixels, but {image} has '
                       f'{size[0]} x {size[1]}', sample=str(image))  # yapf: disable
        return None
    source = context.locate(image)
    try:
        instances = _read_annotations(item.annotations, classes, size, source, context)
    except Exception as error:  # masks are decoded here, by code that raises errors of any type
        context.reject(image, f'datumaro cannot read its annotations: {error}')
        return None
    if not instances:
        context.count_dropped('images without shapes count as images without objects', source)
    return AnnotatedImage(image, size, source, instances)


def _read_annotations(annotations: Any, classes: list[str], size: tuple[int, int], source: str,
                      context: ReadContext) -> list[Instance]:
    """Return the objects of an image of a size (width, height).

    Raises:
        ValueError: If an object has no class, or does not fit the image.
    """
    from datumaro.components.annotation import Bbox, Ellipse, Mask, Polygon, RotatedBbox
    shapes: list[Drawn] = []
    boxes: list[Drawn] = []
    for number, each in enumerate(annotations, 1):
        location = f'{source}: shape {number}'
        if not isinstance(each, (Mask, Polygon, Ellipse, RotatedBbox, Bbox)):
            context.count_dropped(
                f'annotations of type {each.type.name}, which have no area, are omitted', location)
            continue
        if each.attributes.get('outside'):  # CVAT's mark of frames that an object has left
            continue
        if each.attributes.get('ignored'):
            context.count_dropped('boxes that MOT ignores are omitted', location)
            continue
        if each.label is None:
            raise UserError(f'shape {number} has no class')
        is_crowd = any(each.attributes.get(key) for key in ('is_crowd', 'is_group_of'))
        instance = Instance(classes[each.label], (0, 0, 0, 0), [], location, is_crowd)
        if isinstance(each, Mask):
            rle = encode_mask(each.image)
            if rle['size'] != [size[1], size[0]]:
                height, width = rle['size']
                raise UserError(
                    f'the image has {size[0]} x {size[1]} pixels, but the mask of shape '
                    f'{number} has {width} x {height}')
            if not set_mask(instance, rle, context):
                continue
        else:
            points = each.as_polygon(NUM_POINTS) if isinstance(each, Ellipse) else each.as_polygon()
            polygon = np.ravel(points).tolist()
            is_inverted = isinstance(each, Bbox) and min(each.w, each.h) < 0
            if is_inverted or not all(is_number(side, MAX_COORDINATE) for side in polygon):
                raise UserError(f'shape {number} has the coordinates {abbreviate(polygon)}')
            instance.box = compute_box([polygon])
            instance.polygons = [] if isinstance(each, Bbox) else [polygon]
        if isinstance(each, Bbox):
            boxes.append((each.z_order, number, each.group, instance))
        else:
            instance.group = each.group or None
            shapes.append((each.z_order, number, each.group, instance))
    found = [*shapes, *(box for box in boxes if not _encloses(box, shapes))]
    return [each[-1] for each in sorted(found, key=lambda each: each[:2])]


def _encloses(box: Drawn, shapes: list[Drawn]) -> bool:
    """Return True if a box is that of the shapes in its group, which some formats list, too."""
    *_, group, instance = box
    members = [other.box for *_, number, other in shapes
               if group and number == group and other.label == instance.label]  # yapf: disable
    if not members:
        return False
    sides = np.array(members)
    bounds = (*sides[:, :2].min(0), *sides[:, 2:].max(0))
    return np.allclose(bounds, instance.box, rtol=0, atol=MAX_BOX_ERROR)
