"""One-stage detectors: computations of RTMDet-Ins, DINO and masks of queries around their graphs.

Shapes: ``K`` classes, ``Q`` queries, ``n`` objects, ``h, w`` a map, ``H, W`` the image.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .boxes import build_grid, clip_boxes, invert_scale, is_larger, suppress
from .detection import Detections, GraphRunner, compute_mask_boxes
from .images import ImageError
from .metadata import Section
from .preprocessing import PreparedImage
from .resizing import build_crop_matrix, build_resize_matrix, compute_padded_size
from .segmentation import sigmoid


@dataclass(frozen=True)
class PointDetector:
    """RTMDet-Ins."""
    strides: tuple[tuple[float, float], ...]  # per level, along x and y
    offset: float  # position of points in their cells, in cells
    clip_border: bool
    nms_pre: int  # largest number of candidates per level
    min_score: float
    min_size: float  # smallest width and height, if it is not negative
    max_per_image: int
    overlap: float  # IoU from which the worse of two boxes of a class is suppressed
    threshold: float  # lowest probability of pixels in a mask

    graph_names = ('points', 'masks')

    def __call__(self, image: PreparedImage, graphs: GraphRunner) -> Detections:
        """Return the instances of an image."""
        *outputs, prototypes = graphs.run_image('points', image.array[None])
        num_levels = len(self.strides)
        levels = [
            self._find_candidates(level, *outputs[level::num_levels]) for level in range(num_levels)
        ]
        points, distances, kernels, scores, labels = map(np.concatenate, zip(*levels, strict=True))
        boxes = np.concatenate([points[:, :2] - distances[:, :2], points[:, :2] + distances[:, 2:]],
                               1)
        boxes = clip_boxes(boxes, image.resized) if self.clip_border else boxes
        boxes = boxes * invert_scale(image.scale)
        kept = np.flatnonzero(is_larger(boxes, self.min_size))
        kept = kept[suppress(boxes[kept], scores[kept], labels[kept], self.overlap)]
        kept = kept[:self.max_per_image]
        masks = np.zeros((0, *image.size), bool)
        if len(kept):
            logits, = graphs.run('masks', prototypes, kernels[kept], points[kept])
            masks = self._resize_masks(logits, image)
        return Detections(boxes[kept], scores[kept], labels[kept], masks)

    def _find_candidates(self, level: int, scores: np.ndarray, distances: np.ndarray,
                         kernels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return points with stride, distances, kernels, scores and labels of a level."""
        stride = self.strides[level]
        points = build_grid(scores.shape[2:], stride) + np.float32(self.offset) * np.float32(stride)
        points = np.pad(points, ((0, 0), (0, 1)), constant_values=stride[0])
        scores, distances, kernels = (each[0].reshape(each.shape[1], -1).T
                                      for each in (scores, distances, kernels))  # yapf: disable
        row, label = (scores > self.min_score).nonzero()
        best = np.argsort(-scores[row, label], kind='stable')[:self.nms_pre]
        row, label = row[best], label[best]
        return points[row], distances[row], kernels[row], scores[row, label], label

    def _resize_masks(self, logits: np.ndarray, image: PreparedImage) -> np.ndarray:
        """Return masks ``(n, H, W)``, bool, from logits ``(n, h, w)``.

        Logits are resized to the network's input, then together with it to the image, then cropped.
        """
        matrices = []
        for axis, scale in ((0, image.scale[1]), (1, image.scale[0])):
            length = logits.shape[axis + 1]
            padded = length * int(self.strides[0][1 - axis])
            first = build_resize_matrix(length, padded, False)
            second = build_resize_matrix(padded, math.ceil(padded * (1 / scale)), False)
            matrices.append(second[:image.size[axis]] @ first)
        limit = math.log(self.threshold / (1 - self.threshold))
        masks = np.empty((len(logits), len(matrices[0]), len(matrices[1])), bool)
        for mask, values in zip(masks, logits, strict=True):
            mask[:] = apply_matrices(values, matrices) > limit
        return masks


@dataclass(frozen=True)
class BoxQueryDetector:
    """DINO."""
    num_queries: int
    max_per_image: int

    graph_names = ('pixels', 'queries')

    def __call__(self, image: PreparedImage, graphs: GraphRunner) -> Detections:
        """Return the instances of an image.

        Raises:
            ImageError: If the image has fewer pixels than queries.
        """
        size = np.array(image.resized, np.int64)
        logits, boxes, *levels = graphs.run_image('pixels', image.array[None], size)
        if logits.shape[1] < self.num_queries:
            raise ImageError(f'the feature maps of the image have {logits.shape[1]} positions, '
                             f'fewer than the {self.num_queries} queries of the model: use larger '
                             'images')
        best = np.argsort(-logits[0].max(1), kind='stable')[:self.num_queries]
        scores, boxes = graphs.run('queries', boxes[:, best], *levels)
        row, label, score = find_best_pairs(scores[0], self.max_per_image)
        center, half = boxes[0, row, :2], boxes[0, row, 2:] * np.float32(0.5)
        corners = np.concatenate([center - half, center + half], 1) * np.float32([*size[::-1]] * 2)
        corners = clip_boxes(corners, image.resized) / np.float32(image.scale * 2)
        return Detections(corners, score, label)


@dataclass(frozen=True)
class MaskQueryDetector:
    """Mask2Former, EoMT and PMT."""
    max_per_image: int
    num_things: int  # classes with instances, which precede the others
    mask_stride: float | None  # stride of masks in whole patches

    graph_names = ('model', )

    def __call__(self, image: PreparedImage, graphs: GraphRunner) -> Detections:
        """Return the instances of an image, whose scores include the certainty of masks."""
        scores, logits = graphs.run_image('model', image.array[None])
        row, label, score = find_best_pairs(scores[0], self.max_per_image)
        is_thing = label < self.num_things
        row, label, score = row[is_thing], label[is_thing], score[is_thing]
        matrices = build_mask_matrices(logits.shape[2:], image, self.mask_stride)
        masks = np.zeros((len(row), *image.size), bool)
        for index, query in enumerate(row):
            values = apply_matrices(logits[0, query], matrices)
            mask = masks[index] = values > 0
            score[index] *= sigmoid(values[mask]).sum() / (mask.sum() + np.float32(1e-6))
        return Detections(compute_mask_boxes(masks), score, label, masks)


def find_best_pairs(scores: np.ndarray,
                    max_pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return query, class and score of the best pairs in ``(Q, K)``, each ``(n,)``."""
    best = np.argsort(-scores.ravel(), kind='stable')[:max_pairs]
    row, label = np.divmod(best, scores.shape[1])
    return row, label, scores[row, label]


def build_mask_matrices(size: tuple[int, ...], image: PreparedImage,
                        stride: float | None) -> list[np.ndarray | None]:
    """Return the matrices that resize the rows and columns of masks to the original image.

    Args:
        size: Height and width of masks.
        image: Prepared image.
        stride: See :func:`compute_padded_size`.
    """
    padded = compute_padded_size(size, image.padded, stride)
    return [
        build_crop_matrix(size[axis], padded[axis], image.resized[axis], image.size[axis], False)
        for axis in range(2)
    ]


def apply_matrices(values: np.ndarray, matrices: Sequence[np.ndarray | None]) -> np.ndarray:
    """Resize rows and columns of a map by matrices; None leaves an axis unchanged."""
    rows, columns = matrices
    values = values if rows is None else rows @ values
    return values if columns is None else values @ columns.T


def read_points(section: Section) -> PointDetector:
    """Read RTMDet-Ins from ``model.json``."""
    threshold = section.get_float('threshold')
    if not 0 < threshold < 1:
        raise section.report_build_errors('threshold', 'a number between 0 and 1', threshold)
    return PointDetector(
        strides=tuple(level.get_numbers('stride', 2) for level in section.get_sections('levels')),
        offset=section.get_float('offset'),
        clip_border=section.get_bool('clip_border'),
        nms_pre=section.get_int('nms_pre'),
        min_score=section.get_float('least_score'),
        min_size=section.get_float('min_size'),
        max_per_image=section.get_positive('max_per_image'),
        overlap=section.get_float('overlap'),
        threshold=threshold)


def read_box_queries(section: Section) -> BoxQueryDetector:
    """Read DINO from ``model.json``."""
    return BoxQueryDetector(
        section.get_positive('num_queries'), section.get_positive('max_per_image'))


def read_mask_queries(section: Section) -> MaskQueryDetector:
    """Read a detector with masks of queries from ``model.json``."""
    return MaskQueryDetector(
        section.get_positive('max_per_image'), section.get_positive('num_things'),
        section.get_float('mask_stride', None))
