"""Annotated objects of a dataset as columns, which need little memory.

Shapes: ``N`` objects.
"""
from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmdet.datasets import CocoPanopticDataset

from colonnade.common.errors import FileError, UserError
from colonnade.datasets.rle import decode_rle, encode_segmentation, get_box
from colonnade.datasets.segment_maps import decode_segment_ids
from colonnade.datasets.validation.coco_files import load_json
from colonnade.datasets.validation.panoptic_files import SEGMENT_ID, SEGMENT_MAP, load_panoptic
from colonnade.datasets.validation.segmentations import (find_segmentation_error, is_number,
                                                         is_polygon)
from colonnade.datasets.validation.validation_report import Report


class SegmentMask(NamedTuple):
    """Mask of a panoptic segment."""
    path: str  # PNG image of segments
    segment_id: int


#: a segmentation: polygons ``(P, 2)`` of x and y, an RLE, a segment, or None
Mask = list[np.ndarray] | dict[str, Any] | SegmentMask | None
#: image, label, box, area, whether it is a crowd, and ID
Row = tuple[int, int, tuple[float, float, float, float], float, bool, int]


@dataclass(frozen=True)
class Objects:
    """Annotated objects, sorted by image."""
    images: np.ndarray  # index of each object's image, (N,)
    labels: np.ndarray  # index of each object's class, (N,)
    boxes: np.ndarray  # left, top, right and bottom in pixels of the image, (N, 4), float64
    areas: np.ndarray  # declared areas in pixels, (N,); areas of the boxes where none is declared
    crowds: np.ndarray  # whether each object is a crowd or to be ignored, (N,), bool
    ids: np.ndarray  # annotation IDs, (N,); indices for annotations without ID
    masks: list[Mask]  # N segmentations

    @classmethod
    def from_rows(cls, rows: Sequence[Row], masks: Sequence[Mask]) -> Objects:
        """Return rows as columns."""
        types = (np.int64, np.int64, np.float64, np.float64, bool, np.int64)
        columns = list(map(np.array, list(zip(*rows, strict=True)) or [()] * 6, types))
        columns[2] = columns[2].reshape(-1, 4)
        order = np.argsort(columns[0], kind='stable')
        images, labels, boxes, areas, crowds, ids = (column[order] for column in columns)
        return cls(images, labels, boxes, areas, crowds, ids, [masks[index] for index in order])

    @classmethod
    def concatenate(cls, parts: Sequence[Objects]) -> Objects:
        """Return the objects of several datasets as one."""
        columns = {each.name: np.concatenate([vars(part)[each.name] for part in parts])
                   for each in fields(cls) if each.name != 'masks'}  # yapf: disable
        return cls(**columns, masks=[mask for part in parts for mask in part.masks])

    def __len__(self) -> int:
        return len(self.images)

    @property
    def sides(self) -> np.ndarray:
        """Width and height of each box, ``(N, 2)``."""
        return self.boxes[:, 2:] - self.boxes[:, :2]

    def find_in_image(self, index: int) -> np.ndarray:
        """Return the indices of an image's objects."""
        return np.arange(*np.searchsorted(self.images, [index, index + 1]))

    @cached_property
    def singles(self) -> np.ndarray:
        """Indices of all objects that are not crowds."""
        return np.flatnonzero(~self.crowds)

    def count_per_image(self, num_images: int) -> np.ndarray:
        """Return the number of objects per image, without crowds."""
        return np.bincount(self.images[self.singles], minlength=num_images)


def compact_segmentation(segmentation: Any) -> Mask:
    """Return a segmentation that needs little memory; None for an invalid one."""
    if isinstance(segmentation, SegmentMask):
        return segmentation
    if isinstance(segmentation, dict) and {'size', 'counts'} <= segmentation.keys():
        counts = segmentation['counts']
        return {**segmentation, 'counts': counts.decode() if isinstance(counts, bytes) else counts}
    if not isinstance(segmentation, list):
        return None
    polygons = []
    for polygon in segmentation:
        if isinstance(polygon, list) and is_polygon(polygon):
            try:
                points = np.array(polygon, dtype=np.float32).reshape(-1, 2)
            except (TypeError, ValueError):  # not numbers
                continue
            if np.isfinite(points).all():
                polygons.append(points)
    return polygons or None


def find_extent(mask: Mask) -> np.ndarray | None:
    """Return left, top, right and bottom; None without a mask or if it has to be decoded."""
    if isinstance(mask, list):
        points = np.concatenate(mask)
        return np.concatenate([points.min(axis=0), points.max(axis=0)])
    if not isinstance(mask, dict) or isinstance(mask['counts'], list):
        return None
    left, top, width, height = get_box(mask)
    return np.array([left, top, left + width, top + height])


@lru_cache(maxsize=2)
def load_segment_ids(path: str) -> np.ndarray:
    """Return the IDs of segments ``(H, W)`` in a PNG image; the last images are cached."""
    try:
        return decode_segment_ids(Path(path).read_bytes())
    except FileError as error:
        raise FileError(f'{path} cannot be used: {error}') from error


def decode_mask(mask: list[np.ndarray] | dict[str, Any] | SegmentMask,
                size: tuple[int, int]) -> np.ndarray:
    """Return a mask as pixels ``(H, W)``, bool; ``size`` is that of its image.

    Malformed RLEs and polygons far outside of all images raise a ValueError: pycocotools does not
    notice the former, and runs out of memory with the latter.
    """
    if isinstance(mask, SegmentMask):
        return load_segment_ids(mask.path) == mask.segment_id
    segmentation: Any = mask
    if isinstance(mask, list):
        segmentation = [polygon.ravel().tolist() for polygon in mask]
    rle_size = list(mask['size']) if isinstance(mask, dict) else None
    if fault := find_segmentation_error(segmentation, rle_size, False):
        raise UserError(fault)
    return decode_rle(encode_segmentation(segmentation, size))


def read_coco_objects(dataset: Any, classes: Sequence[str]) -> dict[str, Any]:
    """Return the annotations of a CocoDataset that is not loaded yet, including those it skips.

    Returns:
        ``paths``, ``sizes``, ``objects`` and ``left_out`` of an ``ImageSet``.
    """
    file, folder = Path(dataset.ann_file), dataset.data_prefix['img']
    is_panoptic = isinstance(dataset, CocoPanopticDataset)
    try:
        content = read_segments(dataset) if is_panoptic else load_json(file)
    except (ValueError, RecursionError) as error:
        raise UserError(f'{file} is not valid JSON: {error}') from error
    indices = {name: i for i, name in enumerate(classes)}
    try:
        images = {image['id']: index for index, image in enumerate(content['images'])}
        paths = [os.path.join(folder, image['file_name']) for image in content['images']]
        sizes = [(image['width'], image['height']) for image in content['images']]
        labels = {each['id']: indices.get(each['name']) for each in content['categories']}
    except (KeyError, TypeError) as error:
        raise UserError(f'{file} is not a COCO file: expected images with id, file_name, width and '
                        f'height, and categories with id and name, got {error!r}') from error
    objects, left_out = select_objects(content.get('annotations') or (), images, labels)
    sizes_array = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    return dict(paths=paths, sizes=sizes_array, objects=objects, left_out=left_out)


def read_segments(dataset: Any) -> dict[str, list]:
    """Return the annotations of a CocoPanopticDataset as those of a COCO file, one per segment."""
    report, folder = Report(), dataset.data_prefix.get('seg') or ''
    content = load_panoptic(Path(dataset.ann_file), report)
    if content is None:
        raise UserError(report.errors[0])
    maps = {image['id']: image[SEGMENT_MAP]
            for image in content['images'] if SEGMENT_MAP in image}  # yapf: disable
    for row in content['annotations']:
        path = os.path.join(folder, maps.get(row['image_id'], ''))
        row['segmentation'] = SegmentMask(path, row[SEGMENT_ID])
    return content


def select_objects(annotations: Iterable[dict[str, Any]], images: Mapping[Any, int],
                   labels: Mapping[Any, int | None]) -> tuple[Objects, dict[str, int]]:
    """Return the objects of a dataset's classes, and a count for each reason to skip others.

    Args:
        annotations: Annotations of a COCO file; segmentations are removed to save memory.
        images: Image ID -> index.
        labels: Category ID -> class, or None.
    """
    rows: list[Row] = []
    masks: list[Mask] = []
    left_out: Counter[str] = Counter()
    for annotation in annotations:
        box, label = annotation.get('bbox'), labels.get(annotation.get('category_id'))
        if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
            left_out['annotations without a box'] += 1
        elif annotation.get('image_id') not in images:
            left_out['annotations of images that are not in the file'] += 1
        elif label is None:
            left_out['annotations of categories that the config does not train'] += 1
        else:
            left, top, width, height = box
            area: Any = annotation.get('area')
            annotation_id = annotation.get('id')
            is_crowd = bool(annotation.get('iscrowd') or annotation.get('ignore'))
            rows.append(
                (images[annotation['image_id']], label, (left, top, left + width, top + height),
                 area if is_number(area) else width * height, is_crowd,
                 annotation_id if type(annotation_id) is int else len(rows)))
            masks.append(compact_segmentation(annotation.pop('segmentation', None)))
    return Objects.from_rows(rows, masks), dict(left_out)
