"""What a detector found in images, compared with the truth at one threshold.

``N`` detections and ``M`` annotated objects are in an image, ``K`` is the number of classes.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from pycocotools import mask as coco_masks

from colonnade.datasets.rle import encode_masks

IOU = 0.5  # at least that of a box and the object that it is matched with
SCORE = 0.3  # at least that of detections that are matched


@dataclass(frozen=True)
class Found:
    """The detections in an image, of a size that processes can exchange.

    Attributes:
        index: Of the image in the data set.
        img_id: What the annotations call it.
        size: Its height and width.
        boxes: Left, top, right, bottom, ``(N, 4)``.
        scores: ``(N,)``.
        labels: ``(N,)``.
        masks: In COCO's run-length code; None of a model of boxes.
        mask_scores: Where a model scores masks by themselves.
    """
    index: int
    img_id: Any
    size: tuple[int, int]
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: tuple[dict[str, Any], ...] | None = None
    mask_scores: np.ndarray | None = None


def found_in(sample: BaseDataElement, index: int, masks: Sequence[dict] | None) -> Found:
    """The detections of mmdet's answer.

    Args:
        sample: The answer.
        index: Of the image in the data set.
        masks: In run-length code, if the evaluator has made it already.
    """
    answer = sample.pred_instances
    if masks is None and 'masks' in answer:
        masks = answer.masks
        if isinstance(masks, torch.Tensor):
            masks = encode_masks(masks.cpu().numpy())
    return Found(
        index=index,
        img_id=sample.get('img_id', index),
        size=tuple(sample.ori_shape[:2]),
        boxes=answer.bboxes.float().cpu().numpy().reshape(-1, 4),
        scores=answer.scores.float().cpu().numpy(),
        labels=answer.labels.cpu().numpy().astype(np.int64),
        masks=None if masks is None else tuple(masks),
        mask_scores=answer.mask_scores.cpu().numpy() if 'mask_scores' in answer else None)


@dataclass(frozen=True)
class Matches:
    """Detections of an image above the threshold, and its objects, in pairs.

    Attributes:
        index: Of the image in the data set.
        pairs: Class of the object and class of the detection; ``K`` where there is none.
        none: ``K``.
    """
    index: int
    pairs: tuple[tuple[int, int], ...]
    none: int

    @property
    def right(self) -> int:
        """Objects that were found, with their class."""
        return sum(truth == found for truth, found in self.pairs)

    @property
    def missed(self) -> int:
        """Objects that were not found, or not with their class."""
        return sum(self.none != truth != found for truth, found in self.pairs)

    @property
    def wrong(self) -> int:
        """Detections of nothing, or of another class."""
        return sum(self.none != found != truth for truth, found in self.pairs)

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; None if there is nothing to find or found."""
        number = 2 * self.right + self.missed + self.wrong
        return 2 * self.right / number if number else None


def match(found: Found, objects: Sequence[dict[str, Any]], num_classes: int) -> Matches:
    """Pair detections and objects whatever their classes, the most certain detection first.

    Each detection of at least ``SCORE`` takes the free object that its box covers best, from an
    IoU of ``IOU`` on. Detections on objects to ignore, such as crowds, count for nothing.

    Args:
        found: The detections.
        objects: ``instances`` of the data set's ``get_data_info``.
        num_classes: ``K``.
    """
    sure = np.flatnonzero(found.scores >= SCORE)
    sure = sure[np.argsort(-found.scores[sure], kind='stable')]
    truth = np.array([item['bbox_label'] for item in objects], dtype=np.int64)
    ignored = np.array([bool(item.get('ignore_flag')) for item in objects], dtype=bool)
    boxes = np.array([item['bbox'] for item in objects], dtype=np.float64).reshape(-1, 4)
    free, pairs = ~ignored, []
    for row, label in zip(ious(found.boxes[sure], boxes, ignored), found.labels[sure], strict=True):
        best = int(np.where(free, row, 0).argmax()) if free.any() else -1
        if best >= 0 and free[best] and row[best] >= IOU:
            free[best] = False
            pairs.append((int(truth[best]), int(label)))
        elif not (row[ignored] >= IOU).any():
            pairs.append((num_classes, int(label)))
    pairs += [(int(label), num_classes) for label in truth[free]]
    return Matches(found.index, tuple(pairs), num_classes)


def ious(found: np.ndarray, boxes: np.ndarray, crowds: np.ndarray) -> np.ndarray:
    """IoU of boxes, ``(N, M)``, with crowds as COCO has it: the share of a box that is inside."""
    if not len(found) or not len(boxes):
        return np.zeros((len(found), len(boxes)))
    sides = [np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], axis=1) for b in (found, boxes)]
    return coco_masks.iou(*(b.astype(np.float64) for b in sides), crowds.tolist())


def confusion(matches: Sequence[Matches]) -> list[list[int]]:
    """Class of objects, class of detections, and how often they were paired, as far as they were.

    ``K`` stands for the background: nothing was found, or nothing was there.
    """
    counts = Counter(pair for each in matches for pair in each.pairs)
    return [[*pair, count] for pair, count in sorted(counts.items())]


def worst(matches: Sequence[Matches], limit: int) -> list[Matches]:
    """The images of lowest F1, those of more errors first; none without errors."""
    faulty = [each for each in matches if each.wrong or each.missed]
    return sorted(faulty, key=lambda m: (m.f1, -m.wrong - m.missed, m.index))[:limit]
