"""Panoptic annotations of synthetic shapes in COCO's format: a JSON file and PNG images."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from colonnade.common.errors import FileError

STUFF = 'background'  # the only class of pixels without a shape


class PanopticWriter:
    """Writes ``panoptic_SPLIT.json``, and one PNG image per scene to a folder of the same name.

    A pixel's color is the ID of its segment, red + 256 green + 65536 blue. The categories are the
    classes of shapes, from 1, and last the background.

    Args:
        folder: Folder of annotations.
        split: Name of the split, such as ``'train2017'``.
        classes: Names of the classes of shapes.
    """

    def __init__(self, folder: Path, split: str, classes: Sequence[str]) -> None:
        self.path = folder / f'panoptic_{split}.json'
        self.folder = self.path.with_suffix('')
        self.folder.mkdir(parents=True)
        names = (*classes, STUFF)
        self.categories = [
            dict(id=index + 1, name=name, isthing=int(name != STUFF), supercategory=name)
            for index, name in enumerate(names)
        ]
        self.images: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []

    def add(self, image: dict[str, Any], labels: Sequence[int],
            masks: Sequence[np.ndarray]) -> None:
        """Write the segments of an image.

        Args:
            image: Entry of the image in the JSON file.
            labels: Index of the class of each shape.
            masks: Bool masks ``(H, W)`` of the shapes, which do not overlap.
        """
        background = ~np.any([np.zeros((image['height'], image['width']), bool), *masks], axis=0)
        segments = np.zeros((*background.shape, 3), np.uint8)  # BGR
        infos = []
        labels = [*labels, len(self.categories) - 1]
        for number, (label, mask) in enumerate(zip(labels, [*masks, background], strict=True), 1):
            if not mask.any():
                continue
            segments[mask, 2] = number
            left, top, width, height = cv2.boundingRect(mask.astype(np.uint8))
            infos.append(
                dict(
                    id=number,
                    category_id=label + 1,
                    area=int(mask.sum()),
                    bbox=[left, top, width, height],
                    iscrowd=0))
        name = Path(image['file_name']).with_suffix('.png').name
        if not cv2.imwrite(str(self.folder / name), segments):
            raise FileError(f'cannot write {self.folder / name}')
        self.images.append(image)
        self.annotations.append(dict(image_id=image['id'], file_name=name, segments_info=infos))

    def write(self) -> None:
        """Write the JSON file."""
        content = dict(images=self.images, annotations=self.annotations, categories=self.categories)
        self.path.write_text(json.dumps(content), encoding='utf-8')
