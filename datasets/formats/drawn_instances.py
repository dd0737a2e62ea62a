"""Label maps of a segmenter that are drawn from the instances of COCO, YOLO and Pascal VOC."""
from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

from ..data_index import AnnotatedImage, DataIndex, Instance, Row, share_classes
from ..rle import encode_segmentation
from ..validation.coco_files import CONVERTED_FROM, Usage, check_instances, make_header_check
from ..validation.validation_report import Report
from .coco_repairs import fill_masks
from .data_format import DataFormat, ReadContext
from .instance_formats import INSTANCE_READERS, Reader
from .label_map_formats import open_label_maps
from .shapes import Shapes, draw_shapes


def read_drawn(read: Reader, path: Path, context: ReadContext) -> Shapes:
    """Return the instances that a reader finds as shapes, or none after reporting errors."""
    splits = read(path, context)
    fill_masks([*splits.values()], context)
    for index in splits.values():
        _check(index, path, context)
    if context.report.num_errors:
        return Shapes({})
    share_classes(splits.values())
    images = {split: _list_images(index, context) for split, index in splits.items()}
    if all(index.has_inferred_classes for index in splits.values()):
        return Shapes(images)
    classes = dict.fromkeys(name for index in splits.values() for name in index.classes)
    return Shapes(images, list(classes))


def _check(index: DataIndex, path: Path, context: ReadContext) -> None:
    """Report errors of rows, since malformed polygons crash pycocotools."""
    report = Report()
    check_instances(
        index.file or path,
        index.rows,
        report,
        check_images=make_header_check(index.images, num_bands=context.num_bands),
        usage=Usage(masks=any(row.get('segmentation') for row in index.objects)))
    can_skip = report.num_skippable == report.num_errors
    add = context.report.add_skippable_error if can_skip else context.report.add_error
    for error in report.errors:
        add(error)


def _list_images(index: DataIndex, context: ReadContext) -> list[AnnotatedImage]:
    names = {row['id']: row['name'] for row in index.rows['categories']}
    objects = defaultdict(list)
    for row in index.objects:
        objects[row['image_id']].append(row)
    images = []
    for row in index.rows['images']:
        path, size = index.images / row['file_name'], (row['width'], row['height'])
        instances = [
            _make_instance(each, names[each['category_id']], size, index)
            for each in objects[row['id']]
        ]
        images.append(AnnotatedImage(path, size, context.locate(path), instances))
    return images


def _make_instance(row: Row, label: str, size: tuple[int, int], index: DataIndex) -> Instance:
    left, top, width, height = row['bbox']
    instance = Instance(label, (left, top, left + width, top + height), [],
                        row.get(CONVERTED_FROM) or f'{index.file}: annotation {row["id"]}',
                        bool(row.get('iscrowd') or row.get('ignore')))
    segmentation = row.get('segmentation')
    if isinstance(segmentation, dict):
        instance.mask = encode_segmentation(segmentation, size[::-1])
    elif segmentation:
        instance.polygons = segmentation
    return instance


#: formats that are tried where no format of label maps fits
DRAWN_FORMATS = tuple(
    DataFormat(name, 'labels', layout, detect,
               partial(open_label_maps, partial(draw_shapes, name, partial(read_drawn, read))))
    for name, layout, detect, read in INSTANCE_READERS)
