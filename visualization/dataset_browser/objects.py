"""The annotated objects of a data set as columns, which takes little memory.

Shapes: ``N`` objects.
"""
from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, encode_segmentation, get_box
from colonnade.datasets.validation.segmentations import is_number, is_polygon, segmentation_fault

#: what a segmentation is kept as: polygons ``(P, 2)`` of x and y, a run-length code, or None
Mask = list[np.ndarray] | dict[str, Any] | None
#: image, label, box, area, whether it is a crowd, and id
Row = tuple[int, int, tuple[float, float, float, float], float, bool, int]


@dataclass(frozen=True)
class Objects:
    """Annotated objects, sorted by their images.

    Attributes:
        images: The index of each object's image, ``(N,)``.
        labels: The index of its class, ``(N,)``.
        boxes: Left, top, right and bottom in pixels of the image, ``(N, 4)``, float64.
        areas: In pixels, as the file says them or else of the boxes, ``(N,)``.
        crowds: Whether it is a crowd or to be ignored, ``(N,)``, bool.
        ids: Of the annotations, ``(N,)``; counted from 0 where files have none.
        masks: ``N``.
    """
    images: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    crowds: np.ndarray
    ids: np.ndarray
    masks: list[Mask]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def sides(self) -> np.ndarray:
        """Width and height of each box, ``(N, 2)``."""
        return self.boxes[:, 2:] - self.boxes[:, :2]

    def of_image(self, index: int) -> np.ndarray:
        """The indices of an image's objects."""
        first, last = np.searchsorted(self.images, [index, index + 1])
        return np.arange(first, last)

    @cached_property
    def singles(self) -> np.ndarray:
        """The indices of all objects that are no crowds."""
        return np.flatnonzero(~self.crowds)

    def counts(self, num_images: int) -> np.ndarray:
        """How many objects each image has, crowds left out."""
        return np.bincount(self.images[self.singles], minlength=num_images)


def as_objects(rows: Sequence[Row], masks: Sequence[Mask]) -> Objects:
    """Columns of rows."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    images = np.array(columns[0], dtype=np.int64)
    order = np.argsort(images, kind='stable')
    return Objects(images[order],
                   np.array(columns[1], dtype=np.int64)[order],
                   np.array(columns[2], dtype=np.float64).reshape(-1, 4)[order],
                   np.array(columns[3], dtype=np.float64)[order],
                   np.array(columns[4], dtype=bool)[order],
                   np.array(columns[5], dtype=np.int64)[order], [masks[index] for index in order])


def joined(parts: Sequence[Objects], starts: Sequence[int],
           labels: Sequence[np.ndarray]) -> Objects:
    """Objects of several sets as those of one.

    Args:
        parts: In order.
        starts: What each part's first image counts as.
        labels: What each part's classes count as.
    """
    moved = [
        replace(part, images=part.images + start, labels=numbers[part.labels])
        for part, start, numbers in zip(parts, starts, labels, strict=False)
    ]
    columns = {
        column.name: np.concatenate([vars(part)[column.name] for part in moved])
        for column in fields(Objects) if column.name != 'masks'
    }
    return Objects(**columns, masks=[mask for part in moved for mask in part.masks])


def compact(segmentation: Any) -> Mask:
    """A segmentation as it is kept; None for what is none."""
    if isinstance(segmentation, dict) and {'size', 'counts'} <= segmentation.keys():
        counts = segmentation['counts']
        return {**segmentation, 'counts': counts.decode() if isinstance(counts, bytes) else counts}
    if not isinstance(segmentation, list):
        return None
    found = []
    for polygon in segmentation:
        if isinstance(polygon, list) and is_polygon(polygon):
            try:
                points = np.array(polygon, dtype=np.float32).reshape(-1, 2)
            except (TypeError, ValueError):  # no numbers
                continue
            if np.isfinite(points).all():
                found.append(points)
    return found or None


def extent_of(mask: Mask) -> np.ndarray | None:
    """Left, top, right and bottom of a mask; None without one, or of an uncompressed code."""
    if isinstance(mask, list):
        points = np.concatenate(mask)
        return np.concatenate([points.min(axis=0), points.max(axis=0)])
    if mask is None or isinstance(mask['counts'], list):
        return None
    left, top, width, height = get_box(mask)
    return np.array([left, top, left + width, top + height])


def as_pixels(mask: Mask, size: tuple[int, int]) -> np.ndarray:
    """A mask as pixels ``(H, W)``, bool.

    Args:
        mask: Not None.
        size: Height and width of its image, for polygons.

    Raises:
        ValueError: If a run-length code is malformed, or a polygon reaches far out of all images:
            pycocotools does not find the one, and takes all memory for the other.
    """
    if isinstance(mask, list):
        polygons = [polygon.ravel().tolist() for polygon in mask]
        fault = segmentation_fault(polygons, None, False)
        segmentation: Any = polygons
    else:
        assert mask is not None
        fault = segmentation_fault(mask, list(mask['size']), False)
        segmentation = mask
    if fault:
        raise UserError(fault)
    return decode_rle(encode_segmentation(segmentation, size))


def objects_of_coco(dataset: Any, classes: Sequence[str]) -> dict[str, Any]:
    """The annotations in the file of mmdet's CocoDataset, also those that it would leave out.

    Args:
        dataset: Not loaded yet.
        classes: Whose objects are taken.

    Returns:
        ``paths``, ``sizes``, ``objects`` and ``left_out`` of the set.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not of COCO's form.
    """
    content = read_json(dataset.ann_file)
    folder, names = dataset.data_prefix['img'], {name: i for i, name in enumerate(classes)}
    try:
        numbers = {image['id']: index for index, image in enumerate(content['images'])}
        paths = [os.path.join(folder, image['file_name']) for image in content['images']]
        sizes = [(image['width'], image['height']) for image in content['images']]
        labels = {each['id']: names.get(each['name']) for each in content['categories']}
    except (KeyError, TypeError) as error:
        raise UserError(f'{dataset.ann_file}: images need id, file_name, width and height, '
                        f'categories id and name: {error} is missing') from error
    objects, left_out = counted(content.get('annotations') or (), numbers, labels)
    return dict(
        paths=paths,
        sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2),
        objects=objects,
        left_out=left_out)


def counted(annotations: Sequence[dict[str, Any]], images: dict[Any, int],
            labels: dict[Any, int | None]) -> tuple[Objects, dict[str, int]]:
    """The annotations that are objects of the set's classes.

    Args:
        annotations: Of a COCO file; their segmentations are taken out of them.
        images: The index of each image id.
        labels: The class of each category id; None of those that are not trained.

    Returns:
        The objects; and why others are left out, and how many.
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
            is_crowd = annotation.get('iscrowd')
            rows.append(
                (images[annotation['image_id']], label, (left, top, left + width, top + height),
                 area if is_number(area) else width * height,
                 bool(is_crowd
                      or annotation.get('ignore')), number_of(annotation.get('id'), len(rows))))
            masks.append(compact(annotation.pop('segmentation', None)))  # frees the lists
    return as_objects(rows, masks), dict(left_out)


def number_of(annotation_id: Any, otherwise: int) -> int:
    """The id of an annotation where it is a whole number."""
    return annotation_id if type(annotation_id) is int else otherwise


def read_json(path: str) -> dict[str, Any]:
    """A file in COCO's form.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is none.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is no JSON: {error}') from error
    lists = ('images', 'categories')
    if not isinstance(content, dict) or not all(
            isinstance(content.get(key), list) for key in lists):
        raise UserError(f"{path} is not in COCO's form: it needs the lists images, annotations "
                        'and categories')
    return content


def objects_of_infos(infos: Sequence[dict[str, Any]]) -> Objects:
    """The objects in what a data set of mmdet's says of its images, in any other form."""
    rows: list[Row] = []
    masks: list[Mask] = []
    for image, info in enumerate(infos):
        for each in info.get('instances') or ():
            left, top, right, bottom = map(float, each['bbox'])
            rows.append((image, each['bbox_label'], (left, top, right, bottom),
                         (right - left) * (bottom - top), bool(each.get('ignore_flag')), len(rows)))
            masks.append(compact(each.get('mask')))
    return as_objects(rows, masks)
