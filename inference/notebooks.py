"""Results in notebooks: their display, tables of pandas, and detections of supervision."""
from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from colonnade.common.errors import UserError
from colonnade.common.missing_libraries import import_optional
from colonnade.runtime.images import ImageError

if TYPE_CHECKING:
    import pandas
    import supervision

MAX_SIDE = 1024  # pixels of a displayed drawing; larger ones would make notebooks slow


class NotebookResult:
    """Display and conversions that are the same for results of all kinds."""

    classes: tuple[str, ...]
    draw: Callable[..., Image.Image]

    def _get_columns(self) -> dict[str, Any]:
        """Return the columns of :meth:`to_pandas`."""
        raise NotImplementedError

    def _get_detections(self) -> dict[str, Any]:
        """Return ``xyxy``, ``mask``, ``confidence`` and ``class_id`` of supervision."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row per instance, per segment, or per class of a label map.

        Instances have a ``class``, a ``score``, and their sides ``left``, ``top``, ``right`` and
        ``bottom`` in pixels. Label maps have a ``class`` and its ``fraction``, from 0 to 1.
        Panoptic maps have ``id``, ``class``, ``isthing``, ``area`` in pixels, and sides.

        Raises:
            ValueError: If pandas is not installed.
        """
        return import_optional('pandas').DataFrame(self._get_columns())

    def to_supervision(self) -> supervision.Detections:
        """Return the instances or segments, or a mask per class of a label map.

        ``xyxy`` is in pixels, and ``mask`` is ``(N, H, W)``. Label maps and panoptic maps have no
        ``confidence``.

        Raises:
            ValueError: If supervision is not installed.
        """
        found = self._get_detections()
        names = np.array([self.classes[label] for label in found['class_id']], dtype=str)
        return import_optional('supervision').Detections(**found, data=dict(class_name=names))

    def _draw_small(self) -> Image.Image | None:
        """Return a drawing of limited size, or None if the image cannot be read any more."""
        try:
            drawing = self.draw()
        except (ImageError, UserError):
            return None
        drawing.thumbnail((MAX_SIDE, MAX_SIDE))
        return drawing

    def _repr_png_(self) -> bytes | None:
        drawing = self._draw_small()
        return None if drawing is None else encode_drawing(drawing, 'PNG')

    def _repr_html_(self) -> str | None:
        drawing = self._draw_small()
        if drawing is None:
            return None
        content = b64encode(encode_drawing(drawing, 'JPEG')).decode()
        return (f'<figure><img alt="" src="data:image/jpeg;base64,{content}">'
                f'<figcaption>{escape(repr(self))}</figcaption></figure>')


def encode_drawing(drawing: Image.Image, kind: str) -> bytes:
    """Return the content of an image file."""
    content = BytesIO()
    drawing.save(content, kind, quality=90)
    return content.getvalue()
