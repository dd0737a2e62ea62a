"""Formats of annotated shapes, which detectors and segmenters can learn from."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .labelme import is_labelme, read_labelme
from .shapes import ReadShapes
from .supervisely import is_supervisely, read_supervisely
from .via import is_via, read_via

#: name, files by which it is detected, detection, reader
SHAPE_FORMATS: tuple[tuple[str, str, Callable[[Path], bool], ReadShapes], ...] = (
    ('LabelMe', '*.json next to images, one per image', is_labelme, read_labelme),
    ('VIA', '*.json of the VGG Image Annotator, in the folder of the images', is_via, read_via),
    ('Supervisely', 'meta.json; img/ and ann/ in a folder per dataset', is_supervisely,
     read_supervisely),
)  # yapf: disable
