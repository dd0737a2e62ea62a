"""Detectors of one stage: RTMDet-Ins, DINO and Mask2Former, between and behind the graphs.

Shapes: ``K`` classes, ``Q`` queries, ``n`` objects, ``h, w`` a map, ``H, W`` the image.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .boxes import clip, grid, inverse_of, large, suppress
from .description import Section
from .detection import Found, Graphs
from .images import ImageError
from .interpolation import interpolation, line_of
from .masks import boxes_around
from .preprocessing import Prepared, positive
from .segmentation import sigmoid


@dataclass(frozen=True)
class Points:
    """How RTMDet-Ins finds instances.

    Attributes:
        strides: Of each level along x and y.
        offset: Of points in their cells, in cells.
        clip_border: Whether boxes end at the border of the image.
        nms_pre: How many of a level are suppressed at most.
        least_score: Boxes of lower scores are left out.
        min_size: Boxes that are not wider and higher are left out, but if it is negative.
        max_per_image: How many remain.
        overlap: Above which the worse box of a class is suppressed.
        threshold: From which probability pixels belong to a mask.
    """
    strides: tuple[tuple[float, float], ...]
    offset: float
    clip_border: bool
    nms_pre: int
    least_score: float
    min_size: float
    max_per_image: int
    overlap: float
    threshold: float

    graph_names = ('points', 'masks')

    def __call__(self, prepared: Prepared, graphs: Graphs) -> Found:
        """The instances of an image."""
        *outputs, prototypes = graphs.run_image('points', prepared.array[None])
        num = len(self.strides)
        levels = [self.of_level(level, *outputs[level::num]) for level in range(num)]
        places, distances, kernels, scores, labels = map(np.concatenate, zip(*levels, strict=True))
        boxes = np.concatenate([places[:, :2] - distances[:, :2], places[:, :2] + distances[:, 2:]],
                               1)
        boxes = clip(boxes, prepared.resized) if self.clip_border else boxes
        boxes = boxes * inverse_of(prepared.scale)
        kept = np.flatnonzero(large(boxes, self.min_size))
        kept = kept[suppress(boxes[kept], scores[kept], labels[kept], self.overlap)]
        kept = kept[:self.max_per_image]
        masks = np.zeros((0, *prepared.size), bool)
        if len(kept):
            logits, = graphs.run('masks', prototypes, kernels[kept], places[kept])
            masks = self.resized(logits, prepared)
        return Found(boxes[kept], scores[kept], labels[kept], masks)

    def of_level(self, level: int, scores: np.ndarray, distances: np.ndarray,
                 kernels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Points with their stride, distances, parameters, scores and classes of the best."""
        stride = self.strides[level]
        places = grid(scores.shape[2:], stride) + np.float32(self.offset) * np.float32(stride)
        places = np.pad(places, ((0, 0), (0, 1)), constant_values=stride[0])
        rows = [each[0].reshape(each.shape[1], -1).T for each in (scores, distances, kernels)]
        row, label = (rows[0] > self.least_score).nonzero()
        certain = rows[0][row, label]
        best = np.argsort(-certain, kind='stable')[:self.nms_pre]
        row, label = row[best], label[best]
        return places[row], rows[1][row], rows[2][row], certain[best], label

    def resized(self, logits: np.ndarray, prepared: Prepared) -> np.ndarray:
        """Masks of the image, ``(n, H, W)``, from logits ``(n, h, w)``.

        They are resized to the network's input, then with it to the image, and then cut.
        """
        lines = []
        for axis, scale in ((0, prepared.scale[1]), (1, prepared.scale[0])):
            step = int(self.strides[0][1 - axis])
            wide = logits.shape[axis + 1] * step
            first = interpolation(logits.shape[axis + 1], wide, False)
            second = interpolation(wide, math.ceil(wide * (1 / scale)), False)
            lines.append(second[:prepared.size[axis]] @ first)
        return above(logits, lines, math.log(self.threshold / (1 - self.threshold)))


@dataclass(frozen=True)
class BoxQueries:
    """How DINO finds instances.

    Attributes:
        num_queries: Of pixels whose boxes become queries.
        max_per_image: Pairs of query and class with the best scores.
    """
    num_queries: int
    max_per_image: int

    graph_names = ('pixels', 'queries')

    def __call__(self, prepared: Prepared, graphs: Graphs) -> Found:
        """The instances of an image.

        Raises:
            ImageError: If it has fewer pixels than there are queries.
        """
        size = np.array(prepared.resized, np.int64)
        logits, boxes, *levels = graphs.run_image('pixels', prepared.array[None], size)
        if logits.shape[1] < self.num_queries:
            raise ImageError(f'the model has {self.num_queries} queries, and the image has '
                             f'{logits.shape[1]} pixels in its maps: take larger ones')
        best = np.argsort(-logits[0].max(1), kind='stable')[:self.num_queries]
        scores, boxes = graphs.run('queries', boxes[:, best], *levels)
        row, label, certain = best_pairs(scores[0], self.max_per_image)
        centre, half = boxes[0, row, :2], boxes[0, row, 2:] * np.float32(0.5)
        found = np.concatenate([centre - half, centre + half], 1) * np.float32([*size[::-1]] * 2)
        found = clip(found, prepared.resized) / np.float32(prepared.scale * 2)
        return Found(found, certain, label)


@dataclass(frozen=True)
class MaskQueries:
    """How Mask2Former finds instances.

    Attributes:
        max_per_image: Pairs of query and class with the best scores.
        num_things: Classes that have instances; others behind them have none.
    """
    max_per_image: int
    num_things: int

    graph_names = ('model', )

    def __call__(self, prepared: Prepared, graphs: Graphs) -> Found:
        """The instances of an image; their scores count how certain masks are."""
        scores, logits = graphs.run_image('model', prepared.array[None])
        row, label, certain = best_pairs(scores[0], self.max_per_image)
        kept = label < self.num_things
        row, label, certain = row[kept], label[kept], certain[kept]
        lines = [
            line_of(logits.shape[axis + 2], prepared.padded[axis], prepared.resized[axis],
                    prepared.size[axis], False) for axis in range(2)
        ]
        masks = np.zeros((len(row), *prepared.size), bool)
        for index, query in enumerate(row):
            values = resampled(logits[0, query], lines)
            inside = masks[index] = values > 0
            certain[index] *= sigmoid(values[inside]).sum() / (inside.sum() + np.float32(1e-6))
        return Found(boxes_around(masks), certain, label, masks)


def best_pairs(scores: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, class and score of the best of ``(Q, K)``, each ``(n,)``."""
    best = np.argsort(-scores.ravel(), kind='stable')[:most]
    row, label = np.divmod(best, scores.shape[1])
    return row, label, scores[row, label]


def above(logits: np.ndarray, lines: Sequence[np.ndarray], limit: float) -> np.ndarray:
    """Where maps ``(n, h, w)`` that two matrices resize exceed a limit, ``(n, H, W)``, bool."""
    masks = np.empty((len(logits), len(lines[0]), len(lines[1])), bool)
    for mask, values in zip(masks, logits, strict=True):
        mask[:] = resampled(values, lines) > limit
    return masks


def resampled(values: np.ndarray, lines: Sequence[np.ndarray | None]) -> np.ndarray:
    """A map that matrices resize, along rows and columns; None leaves an axis as it is."""
    rows, columns = lines
    values = values if rows is None else rows @ values
    return values if columns is None else values @ columns.T


def read_points(about: Section) -> Points:
    """What ``model.json`` says of RTMDet-Ins.

    Raises:
        ModelError: If something is missing or impossible.
    """
    threshold = about.get('threshold', float, 'a number')
    if not 0 < threshold < 1:
        raise about.fault('threshold', 'a number between 0 and 1', threshold)
    return Points(
        strides=tuple(level.numbers('stride', 2) for level in about.each('levels')),
        offset=about.get('offset', float, 'a number'),
        clip_border=about.get('clip_border', bool, 'true or false'),
        nms_pre=about.get('nms_pre', int, 'a whole number'),
        least_score=about.get('least_score', float, 'a number'),
        min_size=about.get('min_size', float, 'a number'),
        max_per_image=positive(about, 'max_per_image'),
        overlap=about.get('overlap', float, 'a number'),
        threshold=threshold)


def read_box_queries(about: Section) -> BoxQueries:
    """What ``model.json`` says of DINO."""
    return BoxQueries(positive(about, 'num_queries'), positive(about, 'max_per_image'))


def read_mask_queries(about: Section) -> MaskQueries:
    """What ``model.json`` says of Mask2Former."""
    return MaskQueries(positive(about, 'max_per_image'), positive(about, 'num_things'))
