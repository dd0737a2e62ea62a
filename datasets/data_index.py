"""A split of a dataset as its readers find it: images, objects or label maps, and their sources.

N images, M objects. Rows have COCO's keys, so that they are written, checked and split alike in
whichever format they were. Columns are computed from them.
"""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from .rle import get_area, make_json_rle
from .validation.coco_files import CONVERTED_FROM, SINGULAR

Row = dict[str, Any]


@dataclass
class DataIndex:
    """Images of a split with their objects, or with their label maps.

    Attributes:
        images: Folder that the names of images start from.
        rows: Lists ``images``, ``annotations`` and ``categories`` of a COCO file. Rows that were
            converted have their file and line, object or ID as ``converted_from``.
        label_maps: Name of each image, and the file that says its labels.
        masks: Folder of these files.
        file: COCO file that holds the rows as they are, or None.
        has_counted_classes: Whether classes are those that occur, because nothing lists them.
    """
    images: Path
    rows: dict[str, list] = field(default_factory=dict)
    label_maps: Mapping[str, Path] = field(default_factory=dict)
    masks: Path | None = None
    file: Path | None = None
    has_counted_classes: bool = False

    @property
    def names(self) -> list[str]:
        """Names of images below the folder, ``(N,)``."""
        return list(self.label_maps) or [row['file_name'] for row in self.rows['images']]

    @property
    def image_indices(self) -> np.ndarray:
        """Index of the image of each object, ``(M,)``; -1 if the file does not have it."""
        places = {row['id']: place for place, row in enumerate(self.rows['images'])}
        return np.array([places.get(row['image_id'], -1) for row in self.objects], np.int64)

    @property
    def labels(self) -> np.ndarray:
        """Index of the class of each object, ``(M,)``; -1 if the file does not have it."""
        places = {row['id']: place for place, row in enumerate(self.rows['categories'])}
        return np.array([places.get(row['category_id'], -1) for row in self.objects], np.int64)

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return [row['name'] for row in self.rows['categories']]

    @property
    def objects(self) -> list[Row]:
        """Rows of the objects."""
        return self.rows['annotations']

    def find_classes_by_image(self) -> dict[str, set[str]]:
        """Return the classes that occur in each image, by its name."""
        classes, names = self.classes, self.names
        found: dict[str, set[str]] = {name: set() for name in names}
        for image, label in zip(self.image_indices, self.labels, strict=True):
            if image >= 0:
                found[names[image]].add(classes[label] if label >= 0 else '')
        return found

    def select(self, names: Collection[str]) -> DataIndex:
        """Return the index of some images and their objects."""
        images = [row for row in self.rows['images'] if row['file_name'] in names]
        ids = {row['id'] for row in images}
        objects = [row for row in self.objects if row['image_id'] in ids]
        return DataIndex(self.images, self.rows | dict(images=images, annotations=objects))

    def detach(self, root: Path) -> None:
        """Name rows after their file, which will no longer hold what the index does.

        Args:
            root: Folder that the file is named from.
        """
        if self.file:
            self.rows = name_sources(self.rows, os.path.relpath(self.file, root))
            self.file = None

    def compute_fingerprint(self, *, with_images: bool = False) -> str:
        """Return a text that is another one if rows, or files of label maps, are others.

        Args:
            with_images: Whether the files of images with label maps count, too.
        """
        digest = hashlib.sha256(json.dumps([str(self.images), self.rows]).encode())
        for name, label_map in sorted(self.label_maps.items()):
            files = [label_map, self.images / name] if with_images else [label_map]
            states = [file.stat() for file in files]
            assert self.masks is not None
            line = '\0'.join((name, os.path.relpath(label_map, self.masks),
                              *(f'{state.st_size}\0{state.st_mtime_ns}' for state in states)))
            digest.update(f'{line}\n'.encode(errors='surrogateescape'))
        return digest.hexdigest()


def name_sources(rows: dict[str, list], source: str) -> dict[str, list]:
    """Return rows of a COCO file that say which entry of it they were converted from."""
    return rows | {
        kind: [{
            CONVERTED_FROM: f'{source}: {SINGULAR[kind]} {row["id"]}',
            **row
        } for row in rows[kind]]
        for kind in ('images', 'annotations')
    }


def share_classes(indices: Iterable[DataIndex]) -> None:
    """Give indices whose classes are those that occur in them the classes of all."""
    counted = [index for index in indices if index.has_counted_classes]
    names = sorted({name for index in counted for name in index.classes})
    for index in counted:
        ids = {row['id']: names.index(row['name']) for row in index.rows['categories']}
        index.rows['categories'] = [dict(id=number, name=name) for number, name in enumerate(names)]
        for row in index.objects:
            row['category_id'] = ids[row['category_id']]


@dataclass
class Instance:
    """An object, with pixels that count from 0 at the left and upper edge of the image."""
    label: str
    box: tuple[float, float, float, float]  # left, top, right, bottom
    polygons: list[list[float]]  # each x, y, x, y, ...
    source: str  # file and place
    crowd: bool = False
    mask: dict[str, Any] | None = None  # RLE of the image's size, in place of polygons


@dataclass
class AnnotatedImage:
    """An image and the objects in it."""
    path: Path
    size: tuple[int, int]  # width, height
    source: str  # the file of its annotations
    instances: list[Instance]


def index_images(images: Sequence[AnnotatedImage],
                 classes: Sequence[str] | None = None) -> DataIndex:
    """Return the index of images with objects.

    Args:
        images: At least one.
        classes: Names in order; IDs count from 0, as YOLO's do. ``None`` takes those that occur.
    """
    has_counted_classes = classes is None
    if classes is None:
        classes = sorted({found.label for image in images for found in image.instances})
    folder = Path(os.path.commonpath([os.path.abspath(image.path.parent) for image in images]))
    ids = {name: number for number, name in enumerate(classes)}
    rows: list[Row] = []
    objects: list[Row] = []
    for number, image in enumerate(images, 1):
        name, (width, height) = os.path.relpath(os.path.abspath(image.path), folder), image.size
        row = dict(id=number, file_name=name, width=width, height=height)
        rows.append(row | {CONVERTED_FROM: image.source})
        for found in image.instances:
            keys = dict(id=len(objects) + 1, image_id=number, category_id=ids[found.label])
            objects.append(keys | _describe_shape(found))
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return DataIndex(
        folder,
        dict(images=rows, annotations=objects, categories=categories),
        has_counted_classes=has_counted_classes)


def _describe_shape(found: Instance) -> Row:
    left, top, right, bottom = found.box
    area = (right - left) * (bottom - top)
    shape: Row = dict(bbox=_round([left, top, right - left, bottom - top]))
    if found.polygons:
        points = [np.float32(polygon).reshape(-1, 2) for polygon in found.polygons]
        area = sum(map(cv2.contourArea, points))
        shape['segmentation'] = list(map(_round, found.polygons))
    if found.mask:
        area = get_area(found.mask)
        shape['segmentation'] = make_json_rle(found.mask)
    return shape | {'area': round(area, 3), 'iscrowd': int(found.crowd),
                    CONVERTED_FROM: found.source}  # yapf: disable


def _round(values: Iterable[float]) -> list[float]:
    return [round(float(value), 3) for value in values]  # to a thousandth of a pixel
