"""Panoptic annotations in COCO's format: PNG images of segments, and a JSON file.

Shapes: ``H, W`` height and width of an image.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from colonnade.common.errors import FileError

NUM_COLORS = 256  # values of each channel
VOID = 0  # ID of pixels without a segment


def read_segment_ids(image: np.ndarray) -> np.ndarray:
    """Convert colors ``(H, W, 3)``, RGB, to IDs of segments ``(H, W)``, int32."""
    red, green, blue = np.moveaxis(image.astype(np.int32), -1, 0)
    return red + NUM_COLORS * (green + NUM_COLORS * blue)


def decode_segment_ids(content: bytes) -> np.ndarray:
    """Return the IDs of segments ``(H, W)``, int32, in a file, as training reads them.

    Raises:
        FileError: If it is not an image.
    """
    image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR) if content else None
    if image is None:
        raise FileError('it is truncated, damaged or not an image')
    return read_segment_ids(image[..., ::-1])


def measure_segments(ids: np.ndarray) -> dict[int, dict[str, Any]]:
    """Return ID -> area in pixels and bbox (left, top, width, height) of each segment."""
    values, areas = np.unique(ids, return_counts=True)
    return {
        value: dict(area=area, bbox=list(cv2.boundingRect((ids == value).astype(np.uint8))))
        for value, area in zip(values.tolist(), areas.tolist(), strict=True) if value != VOID
    }


def build_panoptic_content(rows: Mapping[str, list], segment_maps: Mapping[int,
                                                                           str]) -> dict[str, list]:
    """Return the content of a panoptic JSON file.

    Args:
        rows: Lists of images, categories, and annotations, one per segment, with ``image_id`` and
            ``segment_id``.
        segment_maps: Image ID -> name of its PNG image.
    """
    segments: dict[int, list] = {image['id']: [] for image in rows['images']}
    for row in rows['annotations']:
        kept = {key: row[key] for key in row if key not in ('image_id', 'segment_id')}
        segments[row['image_id']].append(kept | dict(id=row['segment_id']))
    annotations = [
        dict(image_id=key, file_name=segment_maps[key], segments_info=each)
        for key, each in segments.items()
    ]
    return dict(rows, annotations=annotations)


class PanopticWriter:
    """Writes a PNG image of segments for each image, and then the JSON file.

    Args:
        file: JSON file.
        folder: Folder of the PNG images.
        categories: Categories, with ``isthing``.
    """

    def __init__(self, file: Path, folder: Path, categories: Sequence[dict[str, Any]]) -> None:
        self.file, self.folder = file, folder
        self.rows: dict[str, list] = dict(images=[], annotations=[], categories=list(categories))
        self.segment_maps: dict[int, str] = {}

    def add(self, image: dict[str, Any], ids: np.ndarray, segments: Iterable[dict[str,
                                                                                  Any]]) -> None:
        """Write the segments of an image; those without a pixel are omitted.

        Args:
            image: Entry of the image in the JSON file.
            ids: ID of the segment of each pixel, ``(H, W)``; 0 for none.
            segments: ``segment_id``, ``category_id`` and perhaps ``iscrowd`` of each segment.
        """
        name = get_segment_map_name(image['file_name'])
        colors = np.stack([ids >> shift & NUM_COLORS - 1 for shift in (16, 8, 0)], -1)  # BGR
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _, content = cv2.imencode('.png', colors.astype(np.uint8))
        path.write_bytes(content.tobytes())
        shapes = measure_segments(ids)
        self.rows['annotations'] += [
            dict(segment, **shapes[segment['segment_id']], image_id=image['id'],
                 iscrowd=segment.get('iscrowd', 0))
            for segment in segments if segment['segment_id'] in shapes
        ]  # yapf: disable
        self.rows['images'].append(image)
        self.segment_maps[image['id']] = name

    def write(self) -> None:
        """Write the JSON file."""
        content = build_panoptic_content(self.rows, self.segment_maps)
        self.file.write_text(json.dumps(content) + '\n', encoding='utf-8')


def get_segment_map_name(image: str) -> str:
    """Return the name of the PNG image of an image, from which mmdet reads its segments."""
    return image.replace('.jpg', '.png')
