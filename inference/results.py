"""Predictions for an image: the instances of a detector, a label map, or panoptic segments."""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import find_objects

from colonnade.common.errors import UserError
from colonnade.datasets.rle import decode_rle, encode_mask, make_json_rle
from colonnade.runtime import results
from colonnade.runtime.images import MAX_PIXELS, Source, read_image

from .arrays import convert_to_rgb, is_array
from .drawing import Color, add_legend, draw_instances, draw_label_map, draw_segments, shade_color
from .notebooks import NotebookResult

UNLABELED = 'unlabeled'  # class of pixels without a class


@dataclass(frozen=True, eq=False, repr=False)
class Instances(NotebookResult, results.Instances):
    """Detected objects, with masks if the model predicts them.

    See :class:`colonnade.runtime.results.Instances` for the other attributes.

    Attributes:
        masks: COCO run-length encodings (RLEs); None if the model predicts only boxes.
        image: RGB values of the image, ``(H, W, 3)``, if it was not passed as a path.
    """
    masks: tuple[dict[str, Any], ...] | None = None
    image: np.ndarray | None = None

    def _select_masks(self, indices: np.ndarray) -> tuple[dict[str, Any], ...]:
        assert self.masks is not None
        return tuple(self.masks[index] for index in indices)

    def get_rles(self) -> tuple[dict[str, Any], ...]:
        """Return the masks as RLEs.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        if self.masks is None:
            raise UserError('the model predicts boxes without masks')
        return self.masks

    def decode_masks(self) -> np.ndarray:
        """Return the masks as an array ``(N, H, W)``, bool.

        Raises:
            ValueError: If the model predicts only boxes.
        """
        masks = [decode_rle(mask) for mask in self.get_rles()]
        return np.stack(masks) if masks else np.zeros((0, *self.size), dtype=bool)

    def _get_columns(self) -> dict[str, Any]:
        return {'class': self.names, 'score': self.scores, **name_sides(self.boxes)}

    def _get_detections(self) -> dict[str, Any]:
        return dict(
            xyxy=self.boxes,
            mask=None if self.masks is None else self.decode_masks(),
            confidence=self.scores,
            class_id=self.labels)

    def to_coco(self, image_id: int, category_ids: Sequence[int] | None = None) -> list[dict]:
        """Return entries of a COCO result file, with the same values as mmdet.

        Args:
            image_id: COCO ID of the image.
            category_ids: COCO category ID of each class. Defaults to 1, 2, …, num_classes.
        """
        ids = range(1, len(self.classes) + 1) if category_ids is None else category_ids
        entries = []
        for index, (left, top, right, bottom) in enumerate(self.boxes.tolist()):
            entry = dict(
                image_id=image_id,
                category_id=int(ids[self.labels[index]]),
                bbox=[left, top, right - left, bottom - top],
                score=float(self.scores[index]))
            if self.masks is not None:
                entry['segmentation'] = self.masks[index]
            entries.append(entry)
        return entries

    def to_json(self, *, masks: bool = False) -> dict[str, Any]:
        """Return class, score and box of each instance, and its RLE with ``masks``."""
        entries = []
        for index, name in enumerate(self.names):
            entry: dict[str, Any] = {
                'class': name,
                'score': round(float(self.scores[index]), 4),
                'box': [round(float(value), 2) for value in self.boxes[index]],
            }
            if masks and self.masks is not None:
                entry['mask'] = self.masks[index]
            entries.append(entry)
        return dict(instances=entries)

    def draw(self,
             image: Source | None = None,
             *,
             threshold: float = 0.3,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """Return the image with boxes, masks, classes and scores.

        Args:
            image: The image that was predicted. Defaults to ``self.image``, or the file
                ``self.source``.
            threshold: Lowest score of instances that are drawn.
            opacity: Opacity of masks, from 0 to 1.
            legend: Whether to write class and score.

        Raises:
            ImageError: If the image cannot be read.
            ValueError: If its size differs, or a setting is not from 0 to 1.
        """
        if not 0 <= threshold <= 1:
            raise UserError(f'threshold must be between 0 and 1, got {threshold}')
        visible = self.filter_by_score(threshold)
        captions = [f'{n} {s:.2f}' for n, s in zip(visible.names, visible.scores, strict=True)]
        return draw_instances(
            read_pixels(self, image),
            visible.boxes,
            visible.masks, [self.palette[label] for label in visible.labels],
            captions if legend else None,
            opacity=opacity)


@dataclass(frozen=True, eq=False, repr=False)
class LabelMap(NotebookResult, results.LabelMap):
    """Class of each pixel.

    See :class:`colonnade.runtime.results.LabelMap` for the other attributes.

    Attributes:
        image: RGB values of the image, ``(H, W, 3)``, if it was not passed as a path.
    """
    image: np.ndarray | None = None

    def _get_columns(self) -> dict[str, Any]:
        fractions = self.class_fractions()
        return {'class': list(fractions), 'fraction': list(fractions.values())}

    def _get_detections(self) -> dict[str, Any]:
        found, counts = np.unique(self.labels, return_counts=True)
        labels = found[np.argsort(-counts, kind='stable')].astype(np.int64)
        slices = find_objects(self.labels.astype(np.int32) + 1)
        return dict(
            xyxy=np.array([to_box(*slices[label]) for label in labels], dtype=np.float32),
            mask=self.labels == labels[:, None, None],
            confidence=None,
            class_id=labels)

    def to_json(self, *, masks: bool = False) -> dict[str, Any]:
        """Return the classes that occur with their fractions, and their RLEs with ``masks``."""
        entries = []
        for name, fraction in self.class_fractions().items():
            entry: dict[str, Any] = {'class': name, 'share': round(fraction, 6)}
            if masks:
                mask = self.labels == self.classes.index(name)
                entry['mask'] = make_json_rle(encode_mask(mask))
            entries.append(entry)
        return dict(classes=entries)

    def draw(self,
             image: Source | None = None,
             *,
             opacity: float = 0.5,
             legend: bool = True) -> Image.Image:
        """Return the image overlaid with class colors, with a legend of the classes below it.

        See :meth:`Instances.draw` for ``image``.
        """
        drawing = draw_label_map(
            read_pixels(self, image), self.labels, self.palette, opacity=opacity)
        return add_legend(drawing, self.legend()) if legend else drawing


@dataclass(frozen=True, eq=False, repr=False)
class PanopticMap(NotebookResult, results.PanopticMap):
    """Segments, one per object and one per class of stuff.

    See :class:`colonnade.runtime.results.PanopticMap` for the other attributes.

    Attributes:
        image: RGB values of the image, ``(H, W, 3)``, if it was not passed as a path.
    """
    image: np.ndarray | None = None

    @property
    def boxes(self) -> np.ndarray:
        """Left, top, right and bottom of each segment in pixels, ``(S, 4)``, int64."""
        boxes = np.zeros((len(self), 4), dtype=np.int64)
        for box, slices in zip(boxes, find_objects(self.segments, len(self)), strict=True):
            if slices is not None:
                box[:] = to_box(*slices)
        return boxes

    def _get_columns(self) -> dict[str, Any]:
        return {
            'id': np.arange(1,
                            len(self) + 1),
            'class': self.names,
            'isthing': self.labels < self.num_things,
            'area': self.areas,
            **name_sides(self.boxes),
        }

    def _get_detections(self) -> dict[str, Any]:
        numbers = np.arange(1, len(self) + 1)
        return dict(
            xyxy=self.boxes.astype(np.float32),
            mask=self.segments == numbers[:, None, None],
            confidence=None,
            class_id=self.labels)

    def to_label_map(self) -> LabelMap:
        """Return the class of each pixel; pixels without a segment have one more class, the last.
        """
        unlabeled = len(self.classes)
        labels = np.array([unlabeled, *self.labels], np.uint16 if unlabeled > 255 else np.uint8)
        return LabelMap(
            size=self.size,
            classes=(*self.classes, UNLABELED),
            palette=(*self.palette, (0, 0, 0)),
            labels=labels[self.segments],
            source=self.source,
            image=self.image)

    def to_coco(self,
                image_id: int,
                file_name: str,
                category_ids: Sequence[int] | None = None) -> dict[str, Any]:
        """Return an annotation of COCO's panoptic format.

        Args:
            image_id: COCO ID of the image.
            file_name: Name of the PNG file with the image of :meth:`to_image`.
            category_ids: COCO category ID of each class. Defaults to 1, 2, …, num_classes.
        """
        ids = range(1, len(self.classes) + 1) if category_ids is None else category_ids
        segments_info = [
            dict(
                id=number,
                category_id=int(ids[label]),
                area=area,
                bbox=[left, top, right - left, bottom - top],
                iscrowd=0) for number, (label, area, (left, top, right, bottom)) in enumerate(
                    zip(self.labels, self.areas.tolist(), self.boxes.tolist(), strict=True), 1)
        ]
        return dict(image_id=image_id, file_name=file_name, segments_info=segments_info)

    def to_json(self, *, masks: bool = False) -> dict[str, Any]:
        """Return class and area in pixels of each segment, whether it is an object, and its RLE
        with ``masks``.
        """
        entries = []
        for info in self.segments_info():
            entry = {'class': info['label'], 'isthing': info['isthing'], 'area': info['area']}
            if masks:
                entry['mask'] = make_json_rle(encode_mask(self.segments == info['id']))
            entries.append(entry)
        return dict(segments=entries)

    def compute_colors(self) -> list[Color]:
        """Return the color of each segment in drawings: objects of a class have different shades.
        """
        counts: Counter[int] = Counter()
        colors = []
        for label in self.labels.tolist():
            colors.append(shade_color(self.palette[label], counts[label]))
            counts[label] += 1
        return colors

    def draw(self,
             image: Source | None = None,
             *,
             opacity: float = 0.5,
             captions: bool = True,
             legend: bool = True) -> Image.Image:
        """Return the image overlaid with segments, with a legend of the classes below it.

        See :meth:`Instances.draw` for ``image``.

        Args:
            image: The image that was predicted.
            opacity: Opacity of segments, from 0 to 1.
            captions: Whether to write the class of large segments.
            legend: Whether to add the legend.
        """
        drawing = draw_segments(
            read_pixels(self, image),
            self.segments,
            self.boxes,
            self.compute_colors(),
            self.names if captions else None,
            opacity=opacity)
        return add_legend(drawing, self.to_label_map().legend()) if legend else drawing


Result = Instances | LabelMap | PanopticMap


def to_box(rows: slice, columns: slice) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom in pixels."""
    return columns.start, rows.start, columns.stop, rows.stop


def name_sides(boxes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns of boxes ``(N, 4)``."""
    return dict(zip(('left', 'top', 'right', 'bottom'), boxes.T, strict=True))


def read_pixels(result: Result, image: Source | None) -> np.ndarray:
    """Return the image of a result as RGB values, ``(H, W, 3)``."""
    if image is None:
        image = result.source if result.image is None else result.image
    if image is None:
        raise UserError('the result has no image: pass one, as in draw(image)')
    pixels = convert_to_rgb(image, 'rgb') if is_array(image) else read_image(
        image, max_pixels=max(MAX_PIXELS, math.prod(result.size)))
    if pixels.shape[:2] != result.size:
        height, width = pixels.shape[:2]
        raise UserError(f'the image has {height} x {width} pixels, but the result is for '
                        f'{result.size[0]} x {result.size[1]}')
    return pixels
