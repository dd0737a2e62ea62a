"""Index of a split of a dataset: images, objects or label maps, and their sources."""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from .rle import get_area, make_json_rle
from .validation.coco_files import CONVERTED_FROM, SINGULAR

Row = dict[str, Any]
#: (label file, image size (width, height)) -> labels (H, W), uint8
LabelReader = Callable[[Path, tuple[int, int]], np.ndarray]


@dataclass
class DataIndex:
    """Images of a split with their objects, or with their label maps.

    With panoptic segments, each is an object with its ID under ``segment_id``, and label maps are
    PNG images of the IDs.
    """
    images: Path  # folder that image names are relative to
    # Lists of a COCO file. Converted rows have the location of their source in ``converted_from``.
    rows: dict[str, list] = field(default_factory=dict)
    label_maps: Mapping[str, Path] = field(default_factory=dict)  # image name -> label file
    masks: Path | None = None  # folder of the label files
    file: Path | None = None  # COCO file with exactly these rows, or None
    # Whether classes are those that occur, because nothing lists them.
    has_inferred_classes: bool = False

    @property
    def classes(self) -> list[str]:
        """Names of the classes."""
        return [row['name'] for row in self.rows['categories']]

    @property
    def num_things(self) -> int:
        """Number of the classes of things, which come first, of a panoptic dataset."""
        return sum(row['isthing'] for row in self.rows['categories'])

    @property
    def objects(self) -> list[Row]:
        """Rows of the objects."""
        return self.rows['annotations']

    def find_classes_by_image(self) -> dict[str, set[str]]:
        """Return image name -> classes in the image; '' stands for unknown categories."""
        names = {row['id']: row['file_name'] for row in self.rows['images']}
        classes = {row['id']: row['name'] for row in self.rows['categories']}
        by_image: dict[str, set[str]] = {name: set() for name in names.values()}
        for row in self.objects:
            if row['image_id'] in names:
                by_image[names[row['image_id']]].add(classes.get(row['category_id'], ''))
        return by_image

    def select(self, names: Collection[str]) -> DataIndex:
        """Return the index of some images and their objects."""
        images = [row for row in self.rows['images'] if row['file_name'] in names]
        ids = {row['id'] for row in images}
        objects = [row for row in self.objects if row['image_id'] in ids]
        label_maps = {name: path for name, path in self.label_maps.items() if name in names}
        rows = self.rows | dict(images=images, annotations=objects)
        return DataIndex(self.images, rows, label_maps, self.masks)

    def detach(self, root: Path) -> None:
        """Record the file (relative to ``root``) as source of its rows, before they change."""
        if self.file:
            self.rows = name_sources(self.rows, os.path.relpath(self.file, root))
            self.file = None

    def compute_fingerprint(self, *, with_images: bool = False) -> str:
        """Return a hash of the rows and of the state of label files.

        Args:
            with_images: Whether to include the state of images with label maps.
        """
        digest = hashlib.sha256(json.dumps([str(self.images), self.rows]).encode())
        for name, label_map in sorted(self.label_maps.items()):
            files = [label_map, self.images / name] if with_images else [label_map]
            if label_map == self.images / name:  # its shapes are elsewhere
                files = files[1:]
            states = [file.stat() for file in files]
            assert self.masks is not None
            line = '\0'.join((name, os.path.relpath(label_map, self.masks),
                              *(f'{state.st_size}\0{state.st_mtime_ns}' for state in states)))
            digest.update(f'{line}\n'.encode(errors='surrogateescape'))
        return digest.hexdigest()


@dataclass(frozen=True)
class LabelSet:
    """Label maps of a dataset in some format."""
    format: str
    splits: Sequence[DataIndex]  # training and validation, or one split to be divided
    # Suffixes of image and label map names; required for lists.
    suffixes: tuple[str, str] | None = None
    lists: Sequence[Path] | None = None  # text files that list the images of both splits
    read: LabelReader | None = None  # reader of label files; None if they are label maps
    classes: Sequence[str] | None = None  # names of the classes; None if the user names them
    palette: Sequence[tuple[int, int, int]] | None = None  # colors of the classes
    label_zero: Literal['ignore', 'class'] | None = None  # meaning of label 0
    ignore_255: bool = False  # whether 255 stands for unlabeled pixels
    meaning: Any = None  # JSON content that determines the labels, in addition to the files
    tables: Sequence[Path] = ()  # files with this content
    annotations: Collection[Path] = ()  # files of single images with this content
    # What a conversion omits, and how often.
    dropped: Mapping[str, int] = field(default_factory=dict)


def name_sources(rows: dict[str, list], source: str) -> dict[str, list]:
    """Return rows of a COCO file with their location in this file."""
    return rows | {
        kind: [{
            CONVERTED_FROM: f'{source}: {SINGULAR[kind]} {row["id"]}',
            **row
        } for row in rows[kind]]
        for kind in ('images', 'annotations')
    }


def share_classes(indices: Iterable[DataIndex]) -> None:
    """Give indices with inferred classes the classes of all of them."""
    inferred = [index for index in indices if index.has_inferred_classes]
    names = sorted({name for index in inferred for name in index.classes})
    for index in inferred:
        ids = {row['id']: names.index(row['name']) for row in index.rows['categories']}
        index.rows['categories'] = [dict(id=number, name=name) for number, name in enumerate(names)]
        for row in index.objects:
            row['category_id'] = ids[row['category_id']]


@dataclass
class Instance:
    """An object. Pixel coordinates start at 0 at the left and top edges of the image."""
    label: str
    box: tuple[float, float, float, float]  # left, top, right, bottom
    polygons: list[list[float]]  # each x, y, x, y, ...
    source: str  # file and location
    is_crowd: bool = False
    mask: dict[str, Any] | None = None  # RLE of the image's size, instead of polygons
    group: str | int | None = None  # objects of an image with the same label and group are one


@dataclass
class AnnotatedImage:
    """An image and its objects."""
    path: Path
    size: tuple[int, int]  # width, height
    source: str  # annotation file
    instances: list[Instance]


def index_images(images: Sequence[AnnotatedImage],
                 classes: Sequence[str] | None = None) -> DataIndex:
    """Return the index of at least one image with objects.

    Args:
        classes: Names in order; IDs start at 0, as in YOLO. Defaults to those that occur.
    """
    has_inferred_classes = classes is None
    if classes is None:
        classes = sorted({each.label for image in images for each in image.instances})
    folder = Path(os.path.commonpath([os.path.abspath(image.path.parent) for image in images]))
    ids = {name: number for number, name in enumerate(classes)}
    rows: list[Row] = []
    objects: list[Row] = []
    for number, image in enumerate(images, 1):
        name, (width, height) = os.path.relpath(os.path.abspath(image.path), folder), image.size
        row = dict(id=number, file_name=name, width=width, height=height)
        rows.append(row | {CONVERTED_FROM: image.source})
        for instance in image.instances:
            keys = dict(id=len(objects) + 1, image_id=number, category_id=ids[instance.label])
            objects.append(keys | _describe_shape(instance))
    categories = [dict(id=number, name=name) for name, number in ids.items()]
    return DataIndex(
        folder,
        dict(images=rows, annotations=objects, categories=categories),
        has_inferred_classes=has_inferred_classes)


def _describe_shape(instance: Instance) -> Row:
    left, top, right, bottom = instance.box
    area = (right - left) * (bottom - top)
    shape: Row = dict(bbox=_round([left, top, right - left, bottom - top]))
    if instance.polygons:
        points = [np.float32(polygon).reshape(-1, 2) for polygon in instance.polygons]
        area = sum(map(cv2.contourArea, points))
        shape['segmentation'] = list(map(_round, instance.polygons))
    if instance.mask:
        area = get_area(instance.mask)
        shape['segmentation'] = make_json_rle(instance.mask)
    return shape | {'area': round(area, 3), 'iscrowd': int(instance.is_crowd),
                    CONVERTED_FROM: instance.source}  # yapf: disable


def _round(values: Iterable[float]) -> list[float]:
    return [round(float(value), 3) for value in values]  # to a thousandth of a pixel
