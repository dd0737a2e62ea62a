"""Detections in images, compared with the ground truth at one threshold.

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

from colonnade.datasets.rle import encode_masks, make_json_rle

MIN_IOU = 0.5  # of a box and the object that it is paired with
MIN_SCORE = 0.3  # of detections that are paired


@dataclass(frozen=True)
class Detections:
    """The detections in an image, of a size that processes can exchange.

    Attributes:
        index: Index of the image in the dataset.
        img_id: ID of the image in the annotations.
        size: Height and width of the image.
        boxes: Left, top, right, bottom, ``(N, 4)``.
        scores: ``(N,)``.
        labels: ``(N,)``.
        masks: RLEs; None for a model of boxes.
        mask_scores: ``(N,)``, if the model scores masks separately.
    """
    index: int
    img_id: Any
    size: tuple[int, int]
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: tuple[dict[str, Any], ...] | None = None
    mask_scores: np.ndarray | None = None

    @classmethod
    def from_sample(cls, sample: BaseDataElement, index: int,
                    masks: Sequence[dict] | None) -> Detections:
        """Return the detections of mmdet's prediction.

        Args:
            sample: Prediction.
            index: Index of the image in the dataset.
            masks: RLEs, if the evaluator has made them already.
        """
        prediction = sample.pred_instances
        if masks is None and 'masks' in prediction:
            masks = prediction.masks
            if isinstance(masks, torch.Tensor):
                masks = encode_masks(masks.cpu().numpy())
        return cls(
            index=index,
            img_id=sample.get('img_id', index),
            size=tuple(sample.ori_shape[:2]),
            boxes=prediction.bboxes.float().cpu().numpy().reshape(-1, 4),
            scores=prediction.scores.float().cpu().numpy(),
            labels=prediction.labels.cpu().numpy().astype(np.int64),
            masks=None if masks is None else tuple(masks),
            mask_scores=(prediction.mask_scores.cpu().numpy()
                         if 'mask_scores' in prediction else None))

    def to_coco(self, cat_ids: Sequence[int], kind: str, by_index: bool) -> list[dict[str, Any]]:
        """Return the detections as entries of COCO's result files.

        Args:
            cat_ids: Category ID of each label.
            kind: ``'bbox'`` or ``'segm'``.
            by_index: Whether the index of the image is its ID.
        """
        scores = self.scores
        if kind == 'segm' and self.mask_scores is not None:
            scores = self.mask_scores
        entries: list[dict[str, Any]] = []
        for index, (left, top, right, bottom) in enumerate(self.boxes.tolist()):
            shape: dict[str, Any] = dict(bbox=[left, top, right - left, bottom - top])
            if kind == 'segm':
                shape = dict(segmentation=make_json_rle((self.masks or ())[index]))
            entries.append(
                dict(
                    image_id=self.index if by_index else self.img_id,
                    category_id=cat_ids[self.labels[index]],
                    score=float(scores[index]),
                    **shape))
        return entries


@dataclass(frozen=True)
class Matches:
    """Detections of an image above the threshold and its objects, in pairs.

    Attributes:
        index: Index of the image in the dataset.
        pairs: Class of the object and class of the detection; ``K`` where there is none.
        none: ``K``.
    """
    index: int
    pairs: tuple[tuple[int, int], ...]
    none: int

    @property
    def right(self) -> int:
        """Number of objects that were found, with their class."""
        return sum(truth == found for truth, found in self.pairs)

    @property
    def missed(self) -> int:
        """Number of objects that were not found, or not with their class."""
        return sum(self.none != truth != found for truth, found in self.pairs)

    @property
    def wrong(self) -> int:
        """Number of detections of nothing, or of another class."""
        return sum(self.none != found != truth for truth, found in self.pairs)

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None without objects and detections."""
        number = 2 * self.right + self.missed + self.wrong
        return 2 * self.right / number if number else None


def match_objects(detections: Detections, objects: Sequence[dict[str, Any]],
                  num_classes: int) -> Matches:
    """Pair detections and objects regardless of their classes, the highest score first.

    Each detection of at least ``MIN_SCORE`` takes the free object of the highest IoU, from
    ``MIN_IOU`` on. Detections on objects to ignore, such as crowds, count for nothing.

    Args:
        detections: Detections of an image.
        objects: ``instances`` of the dataset's ``get_data_info``.
        num_classes: ``K``.
    """
    chosen = np.flatnonzero(detections.scores >= MIN_SCORE)
    chosen = chosen[np.argsort(-detections.scores[chosen], kind='stable')]
    truth = np.array([item['bbox_label'] for item in objects], dtype=np.int64)
    ignored = np.array([bool(item.get('ignore_flag')) for item in objects], dtype=bool)
    boxes = np.array([item['bbox'] for item in objects], dtype=np.float64).reshape(-1, 4)
    ious = compute_ious(detections.boxes[chosen], boxes, ignored)
    free, pairs = ~ignored, []
    for row, label in zip(ious, detections.labels[chosen], strict=True):
        best = int(np.where(free, row, 0).argmax()) if free.any() else -1
        if best >= 0 and free[best] and row[best] >= MIN_IOU:
            free[best] = False
            pairs.append((int(truth[best]), int(label)))
        elif not (row[ignored] >= MIN_IOU).any():
            pairs.append((num_classes, int(label)))
    pairs += [(int(label), num_classes) for label in truth[free]]
    return Matches(detections.index, tuple(pairs), num_classes)


def compute_ious(detected: np.ndarray, boxes: np.ndarray, crowds: np.ndarray) -> np.ndarray:
    """Return the IoU of boxes, ``(N, M)``; of crowds, the fraction of a box that is inside."""
    if not len(detected) or not len(boxes):
        return np.zeros((len(detected), len(boxes)))
    sides = [np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], axis=1) for b in (detected, boxes)]
    return coco_masks.iou(*(b.astype(np.float64) for b in sides), crowds.tolist())


def count_pairs(matches: Sequence[Matches]) -> list[list[int]]:
    """Return class of objects, class of detections, and how often they were paired, if at all.

    ``K`` stands for the background: nothing was found, or nothing was there.
    """
    counts = Counter(pair for each in matches for pair in each.pairs)
    return [[*pair, count] for pair, count in sorted(counts.items())]


def find_worst_matches(matches: Sequence[Matches], limit: int) -> list[Matches]:
    """Return the images of lowest F1, those of more errors first; none without errors."""
    faulty = [each for each in matches if each.wrong or each.missed]
    return sorted(faulty, key=lambda m: (m.f1, -m.wrong - m.missed, m.index))[:limit]
