"""Predictions for images, compared with the ground truth, small enough to exchange and store.

Shapes: ``N`` detections and ``M`` annotated objects of an image, ``K`` classes, ``S`` segments.
"""
from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.structures import BaseDataElement
from pycocotools import mask as coco_masks

from colonnade.common.errors import UserError
from colonnade.datasets.rle import encode_masks, make_json_rle
from colonnade.evaluation.panoptic_quality import summarize
from colonnade.inference.drawing import Color
from colonnade.inference.ground_truth import build_label_map
from colonnade.runtime.colors import distinct_colors
from colonnade.runtime.results import number_segments

MIN_IOU = 0.5  # box IoU of a matched detection and object
MIN_SCORE = 0.3  # score of matched detections
MAX_SIDE = 384  # pixels of a stored map of labels or segments
IGNORED = 255  # label of pixels to ignore, unless a metric has another


@dataclass(frozen=True)
class Legend:
    """Task and classes of a model, see :class:`~colonnade.inference.ground_truth.TaskInfo`."""
    kind: str
    classes: tuple[str, ...]
    palette: tuple[Color, ...]
    num_things: int = 0

    @classmethod
    def read(cls, dataset: Any, kind: str) -> Legend:
        """Return the classes of a dataset on which a model of this task is evaluated."""
        classes = tuple(dataset.metainfo['classes'])
        palette = dataset.metainfo.get('palette')
        if not isinstance(palette, (list, tuple)) or len(palette) != len(classes):
            palette = distinct_colors(len(classes))
        num_things = len(dataset.metainfo.get('thing_classes', classes))
        return cls(kind, classes, tuple(map(tuple, palette)), num_things)


@dataclass(frozen=True)
class PackedMap:
    """Subsampled and compressed map of labels or segments."""
    shape: tuple[int, int]
    content: bytes

    @classmethod
    def pack(cls, values: np.ndarray) -> PackedMap:
        """Compress values ``(h, w)`` from 0 to 65535."""
        return cls(values.shape, zlib.compress(values.astype(np.uint16).tobytes(), 1))

    def unpack(self) -> np.ndarray:
        """Return the values ``(h, w)``, uint16."""
        return np.frombuffer(zlib.decompress(self.content), dtype=np.uint16).reshape(self.shape)


def subsample(values: torch.Tensor) -> np.ndarray:
    """Return every n-th row and column of a map ``(H, W)``, at most :data:`MAX_SIDE` of them."""
    step = -(-max(values.shape) // MAX_SIDE)
    return values[::step, ::step].cpu().numpy()


@dataclass(frozen=True)
class Detections:
    """Detections in an image."""
    index: int  # index of the image in the dataset
    img_id: Any  # ID of the image in the annotations
    size: tuple[int, int]  # height and width of the image
    boxes: np.ndarray  # left, top, right, bottom, (N, 4)
    scores: np.ndarray  # (N,)
    labels: np.ndarray  # (N,)
    masks: tuple[dict[str, Any], ...] | None = None  # RLEs; None for a box detector
    mask_scores: np.ndarray | None = None  # (N,), if masks are scored separately

    @classmethod
    def from_sample(cls, sample: BaseDataElement, index: int,
                    masks: Sequence[dict] | None) -> Detections:
        """Return the detections of mmdet's prediction, with RLEs that the evaluator has encoded."""
        prediction = sample.pred_instances
        if masks is None and 'masks' in prediction:
            masks = prediction.masks
            if isinstance(masks, torch.Tensor):
                masks = encode_masks(masks.cpu().numpy())
        scores = prediction.mask_scores.cpu().numpy() if 'mask_scores' in prediction else None
        return cls(
            index=index,
            img_id=sample.get('img_id', index),
            size=tuple(sample.ori_shape[:2]),
            boxes=prediction.bboxes.float().cpu().numpy().reshape(-1, 4),
            scores=prediction.scores.float().cpu().numpy(),
            labels=prediction.labels.cpu().numpy().astype(np.int64),
            masks=None if masks is None else tuple(masks),
            mask_scores=scores)

    def to_coco(self, cat_ids: Sequence[int], kind: str, by_index: bool) -> list[dict[str, Any]]:
        """Return entries of COCO's result files, of the ``'bbox'`` or ``'segm'`` of detections."""
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
    """Pairs of objects and detections of an image."""
    index: int  # index of the image in the dataset
    pairs: tuple[tuple[int, int], ...]  # class of the object and of the detection; K for none
    right: int  # number of objects detected with their class
    missed: int  # number of objects not detected, or with another class
    wrong: int  # number of detections without an object, or with another class

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; None without objects and detections."""
        number = 2 * self.right + self.missed + self.wrong
        return 2 * self.right / number if number else None


def match_objects(detections: Detections, objects: Sequence[dict[str, Any]],
                  num_classes: int) -> Matches:
    """Match detections with ``instances`` of any class, in the order of descending scores.

    Each detection of at least ``MIN_SCORE`` is matched with the free object of the highest IoU, if
    it is at least ``MIN_IOU``. Detections on objects to ignore, such as crowds, do not count.
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
    return Matches(
        detections.index,
        tuple(pairs),
        right=sum(label == found for label, found in pairs),
        missed=sum(num_classes != label != found for label, found in pairs),
        wrong=sum(num_classes != found != label for label, found in pairs))


def compute_ious(detected: np.ndarray, boxes: np.ndarray, crowds: np.ndarray) -> np.ndarray:
    """Return the IoU of boxes, ``(N, M)``; for crowds, the fraction of a box that is inside."""
    if not len(detected) or not len(boxes):
        return np.zeros((len(detected), len(boxes)))
    sides = [np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], axis=1) for b in (detected, boxes)]
    return coco_masks.iou(*(b.astype(np.float64) for b in sides), crowds.tolist())


def count_pairs(matches: Sequence[Matches]) -> list[list[int]]:
    """Return each pair of classes that occurs, with its number; ``K`` is the background."""
    counts = Counter(pair for each in matches for pair in each.pairs)
    return [[*pair, count] for pair, count in sorted(counts.items())]


def find_worst_matches(matches: Sequence[Matches], limit: int) -> list[Matches]:
    """Return the images with errors of the lowest F1, and of those the ones with most errors."""
    faulty = [each for each in matches if each.wrong or each.missed]
    return sorted(faulty, key=lambda m: (m.f1, -m.wrong - m.missed, m.index))[:limit]


def find_best_matches(matches: Sequence[Matches], limit: int) -> list[Matches]:
    """Return the images of the highest F1 above 0, and of those the ones with most objects."""
    right = [each for each in matches if each.right]
    return sorted(right, key=lambda m: (-(m.f1 or 0), -m.right, m.index))[:limit]


@dataclass(frozen=True)
class PixelCounts:
    """Predicted label map of an image, counted against the ground truth."""
    index: int  # index of the image in the dataset
    cells: np.ndarray  # truth * K + prediction of the pairs that occur; truth K is unlabeled
    counts: np.ndarray  # number of pixels of each pair
    labels: PackedMap  # prediction
    num_classes: int  # K

    @classmethod
    def from_labels(cls, predicted: torch.Tensor, truth: torch.Tensor, index: int, num_classes: int,
                    ignored: int) -> PixelCounts:
        """Count and compress a predicted label map ``(H, W)``, ignoring a label of the truth."""
        valid = truth != ignored
        rows = truth[valid].long().clamp(max=num_classes)
        counts = torch.bincount(rows * num_classes + predicted[valid].long()).cpu().numpy()
        cells = np.flatnonzero(counts)
        labels = PackedMap.pack(subsample(predicted))
        return cls(index, cells, counts[cells], labels, num_classes)

    @property
    def miou(self) -> float | None:
        """Mean IoU of the annotated classes; None if there are none."""
        counts = count_confusion([self])
        present = counts[:-1].sum(axis=1) > 0
        return float(compute_scores(counts)['iou'][present].mean()) if present.any() else None


@dataclass(frozen=True)
class Segments:
    """Predicted segments of an image."""
    index: int  # index of the image in the dataset
    segments: PackedMap  # number of the segment of each pixel, from 1; 0 for none
    labels: np.ndarray  # class of each segment, (S,)
    stats: np.ndarray | None  # (K, 4), see PanopticQuality; None if the metric is another

    @classmethod
    def from_codes(cls, codes: torch.Tensor, index: int, num_classes: int,
                   stats: np.ndarray | None) -> Segments:
        """Compress mmdet's panoptic map ``(H, W)``."""
        segments, labels = number_segments(subsample(codes), num_classes)
        return cls(index, PackedMap.pack(segments), labels, stats)

    @property
    def quality(self) -> float:
        """Panoptic quality of the image in percent; 100 if it is not known."""
        is_known = self.stats is not None and self.stats.any()
        return summarize(self.stats)['PQ'] if is_known else 100.


ImageRecord: TypeAlias = Detections | PixelCounts | Segments


def compact_prediction(sample: BaseDataElement, index: int, evaluated: Any, dataset: Any,
                       metrics: Sequence[BaseMetric]) -> ImageRecord:
    """Return a prediction in a form that needs little memory.

    Args:
        sample: Prediction of mmdet or mmseg.
        index: Index of the image in the dataset.
        evaluated: RLEs of the detections, or statistics of the segments, if the evaluator has
            computed them.
        dataset: Dataset that is evaluated.
        metrics: Metrics of the evaluation, which determine the label to ignore.
    """
    classes = tuple(dataset.metainfo['classes'])
    if 'pred_panoptic_seg' in sample:
        stats = evaluated if isinstance(evaluated, np.ndarray) else None
        codes = sample.pred_panoptic_seg.sem_seg[0]
        return Segments.from_codes(codes, index, len(classes), stats)
    if 'pred_sem_seg' not in sample:
        if 'pred_instances' not in sample:
            raise UserError('the model predicts no instances, label maps or segments')
        return Detections.from_sample(sample, index, evaluated)
    predicted = sample.pred_sem_seg.data.squeeze()
    if 'gt_sem_seg' in sample:
        truth = sample.gt_sem_seg.data.squeeze()
    else:
        info = dataset.get_data_info(index)
        labels = build_label_map(Legend('labels', classes, ()), info, info['img_path']).labels
        truth = torch.from_numpy(labels.astype(np.int64))
    ignored = next((vars(metric)['ignore_index'] for metric in metrics
                    if 'ignore_index' in vars(metric)), IGNORED)  # yapf: disable
    return PixelCounts.from_labels(predicted, truth.to(predicted.device), index, len(classes),
                                   ignored)  # yapf: disable


def count_confusion(images: Sequence[PixelCounts]) -> np.ndarray:
    """Return the pixels of each class predicted as each class, ``(K + 1, K)``."""
    num_classes = images[0].num_classes
    total = np.zeros((num_classes + 1) * num_classes, dtype=np.int64)
    for image in images:
        total[image.cells] += image.counts
    return total.reshape(num_classes + 1, num_classes)


def compute_scores(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return IoU and accuracy of each class, from 0 to 1; NaN for classes that do not occur."""
    right, truth, found = np.diag(counts), counts[:-1].sum(axis=1), counts.sum(axis=0)
    with np.errstate(invalid='ignore', divide='ignore'):
        return dict(iou=right / (truth + found - right), acc=right / truth)


def find_worst_maps(images: Sequence[PixelCounts], limit: int) -> list[tuple[PixelCounts, float]]:
    """Return the images of the lowest mean IoU below 1, and this IoU."""
    scored = [(each, miou) for each in images if (miou := each.miou) is not None and miou < 1]
    return sorted(scored, key=lambda pair: (pair[1], pair[0].index))[:limit]


def find_best_maps(images: Sequence[PixelCounts], limit: int) -> list[tuple[PixelCounts, float]]:
    """Return the images of the highest mean IoU, and this IoU."""
    scored = [(each, miou) for each in images if (miou := each.miou) is not None]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0].index))[:limit]


def find_worst_segments(images: Sequence[Segments], limit: int) -> list[Segments]:
    """Return the images of the lowest panoptic quality below 100."""
    faulty = [each for each in images if each.quality < 100]
    return sorted(faulty, key=lambda each: (each.quality, each.index))[:limit]


def find_best_segments(images: Sequence[Segments], limit: int) -> list[Segments]:
    """Return the images of the highest panoptic quality, without those where it is not known."""
    known = [each for each in images if each.stats is not None and each.stats.any()]
    return sorted(known, key=lambda each: (-each.quality, each.index))[:limit]
