"""Detectors of two stages, Cascade R-CNN too: between and behind the graphs.

Shapes: ``K`` classes, ``A`` anchors of a place, ``n`` boxes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .boxes import Coder, anchors, decode, inverse_of, large, levels_of, suppress
from .description import Section
from .detection import Found, Graphs
from .masks import paste
from .preprocessing import Prepared, Size, positive
from .segmentation import softmax


@dataclass(frozen=True)
class Proposals:
    """How the first stage proposes boxes.

    Attributes:
        strides: Of each level along x and y.
        anchors: Of each level at its first place, ``(A, 4)``.
        coder: Of deltas.
        nms_pre: Of the best boxes of a level that are suppressed; all if it is not positive.
        min_size: Boxes that are not wider and higher are left out, but if it is negative.
        max_per_image: How many remain.
        overlap: Above which the worse box of a level is suppressed.
    """
    strides: tuple[tuple[float, float], ...]
    anchors: tuple[np.ndarray, ...]
    coder: Coder
    nms_pre: int
    min_size: float
    max_per_image: int
    overlap: float

    def __call__(self, scores: Sequence[np.ndarray], deltas: Sequence[np.ndarray],
                 size: Size) -> np.ndarray:
        """The best boxes, ``(n, 4)``.

        Args:
            scores: Of each level, ``(1, A, h, w)``.
            deltas: Of each level, ``(1, 4 * A, h, w)``.
            size: Of the image in the network's input.
        """
        found = []
        for level, (score, delta) in enumerate(zip(scores, deltas, strict=True)):
            places = anchors(score.shape[2:], self.strides[level], self.anchors[level])
            score = score[0].transpose(1, 2, 0).ravel()
            delta = delta[0].transpose(1, 2, 0).reshape(-1, 4)
            best = np.argsort(-score, kind='stable')
            best = best[:self.nms_pre] if 0 < self.nms_pre else best
            found.append((places[best], delta[best], score[best], np.full(len(best), level)))
        places, moved, certain, level_of = map(np.concatenate, zip(*found, strict=True))
        boxes = decode(places, moved, self.coder, size)[:, 0]
        kept = large(boxes, self.min_size)
        boxes, certain, level_of = boxes[kept], certain[kept], level_of[kept]
        return boxes[suppress(boxes, certain, level_of, self.overlap)[:self.max_per_image]]


@dataclass(frozen=True)
class TwoStage:
    """How a detector finds instances.

    Attributes:
        proposals: Of the first stage, whose graph is called so.
        finest_scale: Of boxes that are pooled from the finest level.
        num_levels: That boxes are pooled from.
        stages: The coder of each further stage; their graphs are ``regions0``, ``regions1`` …
        least_score: Boxes of lower scores are left out.
        max_per_image: How many remain.
        overlap: Above which the worse box of a class is suppressed.
        threshold: From which probability pixels belong to a mask; None without masks.
    """
    proposals: Proposals
    finest_scale: float
    num_levels: int
    stages: tuple[Coder, ...]
    least_score: float
    max_per_image: int
    overlap: float
    threshold: float | None

    @property
    def graph_names(self) -> tuple[str, ...]:
        """The graphs that it runs."""
        regions = (f'regions{index}' for index in range(len(self.stages)))
        return ('proposals', *regions, *['masks'] * (self.threshold is not None))

    def __call__(self, prepared: Prepared, graphs: Graphs) -> Found:
        """The instances of an image."""
        outputs = graphs.run_image('proposals', prepared.array[None])
        maps, rest = outputs[:self.num_levels], outputs[self.num_levels:]
        half = len(rest) // 2
        proposed = self.proposals(rest[:half], rest[half:], prepared.resized)
        boxes, scores = self.refined(maps, proposed, prepared.resized, graphs)
        if self.threshold is None:
            boxes = boxes * inverse_of(prepared.scale)
        boxes, scores, labels = self.chosen(boxes, scores)
        if self.threshold is None:
            return Found(boxes, scores, labels)
        masks = np.empty((0, 1, 1), np.float32)
        if len(boxes):
            masks, = self.pooled('masks', maps, boxes, graphs, labels)
        boxes = boxes / np.float32(prepared.scale * 2)
        return Found(boxes, scores, labels, paste(masks, boxes, prepared.size, self.threshold))

    def refined(self, maps: Sequence[np.ndarray], boxes: np.ndarray, size: Size,
                graphs: Graphs) -> tuple[np.ndarray, np.ndarray]:
        """Boxes of each class ``(n, K, 4)``, or of all ``(n, 1, 4)``, and scores ``(n, K)``."""
        if not len(boxes):
            return np.empty((0, 1, 4), np.float32), np.empty((0, 1), np.float32)
        total = np.float32(0)
        for index, coder in enumerate(self.stages):
            logits, deltas = self.pooled(f'regions{index}', maps, boxes, graphs)
            total = total + logits
            found = decode(boxes, deltas, coder, size)
            best = logits[:, :-1].argmax(1) if found.shape[1] > 1 else 0
            boxes = found[np.arange(len(found)), best]
        return found, softmax(total / np.float32(len(self.stages)))[:, :-1]

    def pooled(self, name: str, maps: Sequence[np.ndarray], boxes: np.ndarray, graphs: Graphs,
               *others: np.ndarray) -> list[np.ndarray]:
        """The outputs of a graph of regions, in the order of boxes ``(n, 4)``.

        Args:
            name: Of the graph.
            maps: Of the pyramid.
            boxes: At least one.
            graphs: What runs them.
            *others: Further inputs, in the order of boxes.
        """
        levels = levels_of(boxes, self.finest_scale, self.num_levels)
        order = np.argsort(levels, kind='stable')
        by_level = [boxes[levels == level] for level in range(self.num_levels)]
        outputs = graphs.run(name, *maps, *by_level, *(other[order] for other in others))
        back = np.argsort(order, kind='stable')
        return [output[back] for output in outputs]

    def chosen(self, boxes: np.ndarray,
               scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The boxes ``(m, 4)``, scores and classes ``(m,)`` that are neither weak nor suppressed.
        """
        row, label = (scores > self.least_score).nonzero()
        boxes = boxes[row, label if boxes.shape[1] > 1 else 0]
        certain = scores[row, label]
        kept = suppress(boxes, certain, label, self.overlap)
        kept = kept[:self.max_per_image] if self.max_per_image > 0 else kept
        return boxes[kept], certain[kept], label[kept]


def read_two_stage(about: Section) -> TwoStage:
    """What ``model.json`` says of a detector of two stages.

    Raises:
        ModelError: If something is missing or impossible.
    """
    levels, boxes, masks = about.need('levels'), about.need('boxes'), about.below('masks')
    return TwoStage(
        proposals=read_proposals(about.need('proposals')),
        finest_scale=levels.get('finest_scale', float, 'a number'),
        num_levels=positive(levels, 'num_levels'),
        stages=tuple(read_coder(stage.need('coder')) for stage in about.each('stages')),
        least_score=boxes.get('least_score', float, 'a number'),
        max_per_image=boxes.get('max_per_image', int, 'a whole number'),
        overlap=boxes.get('overlap', float, 'a number'),
        threshold=masks.get('threshold', float, 'a number') if masks else None)


def read_proposals(about: Section) -> Proposals:
    """What ``model.json`` says of the first stage."""
    strides, bases = [], []
    for level in about.each('levels'):
        strides.append(level.numbers('stride', 2))
        bases.append(boxes_of(level))
    return Proposals(
        strides=tuple(strides),
        anchors=tuple(bases),
        coder=read_coder(about.need('coder')),
        nms_pre=about.get('nms_pre', int, 'a whole number'),
        min_size=about.get('min_size', float, 'a number'),
        max_per_image=about.get('max_per_image', int, 'a whole number'),
        overlap=about.get('overlap', float, 'a number'))


def boxes_of(about: Section) -> np.ndarray:
    """The anchors of a level at its first place, ``(A, 4)``."""
    wanted = 'a list of boxes of four numbers'
    boxes = about.get('anchors', list, wanted)
    if any(not isinstance(box, list) or len(box) != 4 for box in boxes):
        raise about.fault('anchors', wanted, boxes)
    return np.array(boxes, np.float32).reshape(-1, 4)


def read_coder(about: Section) -> Coder:
    """What ``model.json`` says of deltas."""
    return Coder(
        means=about.numbers('means', 4),
        stds=about.numbers('stds', 4),
        clip_border=about.get('clip_border', bool, 'true or false'),
        centre_limit=about.get('centre_limit', float, 'a number', None))
