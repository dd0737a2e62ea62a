"""Two-stage detectors, including Cascade R-CNN: computations between and after their graphs.

Shapes: ``K`` classes, ``A`` anchors per cell, ``n`` boxes.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .boxes import (Coder, assign_levels, build_anchors, decode_deltas, invert_scale, is_larger,
                    suppress)
from .detection import Detections, GraphRunner, paste
from .metadata import Section
from .preprocessing import PreparedImage, Size
from .segmentation import softmax


@dataclass(frozen=True)
class ProposalStage:
    """First stage, which proposes boxes."""
    strides: tuple[tuple[float, float], ...]  # per level, along x and y
    anchors: tuple[np.ndarray, ...]  # per level, at its first cell, (A, 4)
    coder: Coder
    nms_pre: int  # largest number of candidates per level; all if it is not positive
    min_size: float  # smallest width and height, if it is not negative
    max_per_image: int
    overlap: float  # IoU from which the worse of two boxes of a level is suppressed

    def __call__(self, scores: Sequence[np.ndarray], deltas: Sequence[np.ndarray],
                 size: Size) -> np.ndarray:
        """Return the best boxes, ``(n, 4)``, in an image of height and width ``size``.

        Each level has scores ``(1, A, h, w)`` and deltas ``(1, 4 * A, h, w)``.
        """
        candidates = []
        for level, (score, delta) in enumerate(zip(scores, deltas, strict=True)):
            anchors = build_anchors(score.shape[2:], self.strides[level], self.anchors[level])
            score = score[0].transpose(1, 2, 0).ravel()
            delta = delta[0].transpose(1, 2, 0).reshape(-1, 4)
            best = np.argsort(-score, kind='stable')
            best = best[:self.nms_pre] if 0 < self.nms_pre else best
            candidates.append((anchors[best], delta[best], score[best], np.full(len(best), level)))
        anchors, delta, score, levels = map(np.concatenate, zip(*candidates, strict=True))
        boxes = decode_deltas(anchors, delta, self.coder, size)[:, 0]
        is_kept = is_larger(boxes, self.min_size)
        boxes, score, levels = boxes[is_kept], score[is_kept], levels[is_kept]
        return boxes[suppress(boxes, score, levels, self.overlap)[:self.max_per_image]]


@dataclass(frozen=True)
class TwoStageDetector:
    """A two-stage detector."""
    proposals: ProposalStage
    finest_scale: float  # boxes below twice this size are pooled from the finest level
    num_levels: int  # levels from which boxes are pooled
    stages: tuple[Coder, ...]  # deltas of the graphs regions0, regions1, …
    min_score: float
    max_per_image: int  # largest number of instances, if it is positive
    overlap: float  # IoU from which the worse of two boxes of a class is suppressed
    threshold: float | None  # lowest probability of pixels in a mask; None without masks
    mean_scores: bool = False  # average scores of the stages; otherwise, their logits

    @property
    def graph_names(self) -> tuple[str, ...]:
        """Names of the graphs that it runs."""
        regions = (f'regions{index}' for index in range(len(self.stages)))
        return ('proposals', *regions, *['masks'] * (self.threshold is not None))

    def __call__(self, image: PreparedImage, graphs: GraphRunner) -> Detections:
        """Return the instances of an image."""
        outputs = graphs.run_image('proposals', image.array[None])
        maps, rest = outputs[:self.num_levels], outputs[self.num_levels:]
        half = len(rest) // 2
        proposals = self.proposals(rest[:half], rest[half:], image.resized)
        boxes, scores = self._refine_boxes(maps, proposals, image.resized, graphs)
        if self.threshold is None:
            boxes = boxes * invert_scale(image.scale)
        boxes, scores, labels = self._select_boxes(boxes, scores)
        if self.threshold is None:
            return Detections(boxes, scores, labels)
        masks = np.empty((0, 1, 1), np.float32)
        if len(boxes):
            masks, = self._run_regions('masks', maps, boxes, graphs, labels)
        boxes = boxes / np.float32(image.scale * 2)
        return Detections(boxes, scores, labels, paste(masks, boxes, image.size, self.threshold))

    def _refine_boxes(self, maps: Sequence[np.ndarray], boxes: np.ndarray, size: Size,
                      graphs: GraphRunner) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes per class ``(n, K, 4)``, or for all ``(n, 1, 4)``, and scores ``(n, K)``."""
        if not len(boxes):
            return np.empty((0, 1, 4), np.float32), np.empty((0, 1), np.float32)
        total = np.float32(0)
        for index, coder in enumerate(self.stages):
            logits, deltas = self._run_regions(f'regions{index}', maps, boxes, graphs)
            total = total + (softmax(logits) if self.mean_scores else logits)
            refined = decode_deltas(boxes, deltas, coder, size)
            best = logits[:, :-1].argmax(1) if refined.shape[1] > 1 else 0
            boxes = refined[np.arange(len(refined)), best]
        mean = total / np.float32(len(self.stages))
        return refined, (mean if self.mean_scores else softmax(mean))[:, :-1]

    def _run_regions(self, name: str, maps: Sequence[np.ndarray], boxes: np.ndarray,
                     graphs: GraphRunner, *others: np.ndarray) -> list[np.ndarray]:
        """Return the outputs of a graph for boxes ``(n, 4)`` and further inputs, in their order."""
        levels = assign_levels(boxes, self.finest_scale, self.num_levels)
        order = np.argsort(levels, kind='stable')
        by_level = [boxes[levels == level] for level in range(self.num_levels)]
        outputs = graphs.run(name, *maps, *by_level, *(other[order] for other in others))
        inverse_order = np.argsort(order, kind='stable')
        return [output[inverse_order] for output in outputs]

    def _select_boxes(self, boxes: np.ndarray,
                      scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return boxes ``(m, 4)``, scores and labels ``(m,)`` after suppression."""
        row, label = (scores > self.min_score).nonzero()
        boxes = boxes[row, label if boxes.shape[1] > 1 else 0]
        score = scores[row, label]
        kept = suppress(boxes, score, label, self.overlap)
        kept = kept[:self.max_per_image] if self.max_per_image > 0 else kept
        return boxes[kept], score[kept], label[kept]


def read_two_stage(section: Section) -> TwoStageDetector:
    """Read a two-stage detector from ``model.json``."""
    levels, boxes = section.require_section('levels'), section.require_section('boxes')
    proposals, masks = section.require_section('proposals'), section.get_section('masks')
    proposal_levels = proposals.get_sections('levels')
    return TwoStageDetector(
        proposals=ProposalStage(
            strides=tuple(level.get_numbers('stride', 2) for level in proposal_levels),
            anchors=tuple(map(read_anchors, proposal_levels)),
            coder=read_coder(proposals.require_section('coder')),
            nms_pre=proposals.get_int('nms_pre'),
            min_size=proposals.get_float('min_size'),
            max_per_image=proposals.get_int('max_per_image'),
            overlap=proposals.get_float('overlap')),
        finest_scale=levels.get_float('finest_scale'),
        num_levels=levels.get_positive('num_levels'),
        stages=tuple(
            read_coder(stage.require_section('coder')) for stage in section.get_sections('stages')),
        min_score=boxes.get_float('least_score'),
        max_per_image=boxes.get_int('max_per_image'),
        overlap=boxes.get_float('overlap'),
        threshold=masks.get_float('threshold') if masks else None,
        mean_scores=boxes.get_bool('mean_scores', False))


def read_anchors(section: Section) -> np.ndarray:
    """Read the anchors of a level, ``(A, 4)``."""
    expected = 'a list of boxes of four numbers'
    boxes = section.get('anchors', list, expected)
    if any(not isinstance(box, list) or len(box) != 4 for box in boxes):
        raise section.report_build_errors('anchors', expected, boxes)
    return np.array(boxes, np.float32).reshape(-1, 4)


def read_coder(section: Section) -> Coder:
    """Read the parameters of deltas."""
    return Coder(
        means=section.get_numbers('means', 4),
        stds=section.get_numbers('stds', 4),
        clip_border=section.get_bool('clip_border'),
        centre_limit=section.get_float('centre_limit', None))
