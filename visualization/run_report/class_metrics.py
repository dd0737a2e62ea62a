"""Class metrics, confusion, worst and best images of an evaluation.

Average precision follows COCO's definition. Shapes: ``K`` classes.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from colonnade.evaluation.panoptic_quality import compute_qualities

from ..coco_content import build_coco_content
from ..upstream import get_coco_api
from .predictions import (Detections, ImageRecord, Matches, PixelCounts, Segments, compute_scores,
                          count_confusion, count_pairs, find_best_maps, find_best_matches,
                          find_best_segments, find_worst_maps, find_worst_matches,
                          find_worst_segments, match_objects)

try:
    import faster_coco_eval
except ImportError:
    faster_coco_eval = None

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
#: metrics of datasets that do not annotate all objects
OTHER_PROTOCOLS = ('LVISMetric', 'FasterLVISMetric')
IOUS = tuple(np.linspace(0.5, 0.95, 10))
MAX_DETECTIONS = 100  # per image, as in pycocotools
NUM_WORST = 8  # images
NUM_BEST = 4  # images with the best predictions
NUM_CURVES = 3  # classes of highest and of lowest AP50 whose curves are stored


@dataclass(frozen=True)
class CocoTruth:
    """Annotations of a dataset, and how detections are compared with them."""
    api: Any  # COCO object of faster_coco_eval or pycocotools
    img_ids: Sequence[Any]  # IDs of the evaluated images
    classes: dict[int, int]  # category ID -> class in the dataset, in the order of labels
    num_classes: int  # K, number of classes of the dataset, which may have more than the metric
    iou_thrs: Sequence[float] = IOUS
    max_detections: int = MAX_DETECTIONS  # per image
    by_index: bool = False  # whether IDs of images are indices in the dataset


def get_coco_library() -> tuple[type, type]:
    """Return COCO and its evaluation, from faster_coco_eval if it is installed."""
    if faster_coco_eval is None:
        return COCO, COCOeval
    return faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster


def find_truth(metrics: Iterable[BaseMetric], dataset: Any) -> CocoTruth | None:
    """Return the annotations of COCO's metric, or else of the dataset; None for LVIS."""
    names = list(dataset.metainfo['classes'])
    named = {type(metric).__name__: metric for metric in metrics}
    if any(name in named for name in OTHER_PROTOCOLS):
        return None
    metric = next((named[name] for name in COCO_METRICS if name in named), None)
    if metric is not None and get_coco_api(metric) is not None and metric.cat_ids is not None:
        api = get_coco_api(metric)
        # pycocotools averages over 100 detections, faster_coco_eval over the largest number.
        is_faster = type(metric).__name__ == 'FasterCocoMetric'
        limit = max(metric.proposal_nums) if is_faster else MAX_DETECTIONS
        for annotation in api.anns.values():
            annotation.setdefault('iscrowd', 0)
        classes = {each: names.index(api.cats[each]['name']) for each in metric.cat_ids}
        return CocoTruth(api, metric.img_ids, classes, len(names), metric.iou_thrs, limit)
    api = get_coco_library()[0]()
    with redirect_stdout(StringIO()):  # pycocotools prints its progress.
        api.dataset = build_coco_content(dataset)
        api.createIndex()
    classes = {label: label for label in range(len(names))}
    return CocoTruth(api, range(len(dataset)), classes, len(names), by_index=True)


def compute_precision(truth: CocoTruth, images: Sequence[Detections], kind: str) -> np.ndarray:
    """Return the precision of the ``'bbox'`` or ``'segm'`` of detections.

    Returns:
        Precision at each IoU threshold and 101 recall values, ``(T, 101, K)``; NaN for classes
        without objects. Its mean over thresholds and recall is the average precision.
    """
    precision = np.full((len(truth.iou_thrs), 101, truth.num_classes), np.nan)
    cat_ids = list(truth.classes)
    entries = [entry for image in images
               for entry in image.to_coco(cat_ids, kind, truth.by_index)]  # yapf: disable
    if not entries:  # pycocotools fails without detections.
        present = {item['category_id'] for item in truth.api.anns.values()}
        precision[..., [truth.classes[each] for each in present & truth.classes.keys()]] = 0
        return precision
    library = get_coco_library()
    evaluation_class = library[1] if isinstance(truth.api, library[0]) else COCOeval
    with redirect_stdout(StringIO()):
        evaluation = evaluation_class(truth.api, truth.api.loadRes(entries), kind)
        params = evaluation.params
        params.catIds, params.imgIds = sorted(cat_ids), list(truth.img_ids)
        params.maxDets, params.iouThrs = [truth.max_detections], np.asarray(truth.iou_thrs)
        params.areaRng, params.areaRngLbl = params.areaRng[:1], params.areaRngLbl[:1]
        evaluation.evaluate()
        evaluation.accumulate()
    values = np.array(evaluation.eval['precision'])[..., 0, 0]  # (T, 101, categories)
    values = np.where(values < 0, np.nan, values)
    precision[..., [truth.classes[each] for each in sorted(cat_ids)]] = values
    return precision


def compute_details(images: Sequence[ImageRecord], dataset: Any,
                    metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """Return class metrics, confusion, worst and best images of an evaluation, ready for JSON."""
    boxes = [image for image in images if isinstance(image, Detections)]
    if boxes:
        return compute_box_details(boxes, dataset, metrics)
    segments = [image for image in images if isinstance(image, Segments)]
    if segments:
        return compute_segment_details(segments)
    maps = [image for image in images if isinstance(image, PixelCounts)]
    counts = count_confusion(maps)
    scores = {name: to_json(values) for name, values in compute_scores(counts).items()}
    return dict(
        classes=dict(pixels=counts[:-1].sum(axis=1).tolist(), **scores),
        confusion=[[int(t), int(p), int(counts[t, p])] for t, p in np.argwhere(counts[:-1])],
        **select_images(
            [dict(index=each.index, miou=miou) for each, miou in find_worst_maps(maps, NUM_WORST)],
            [dict(index=each.index, miou=miou) for each, miou in find_best_maps(maps, NUM_BEST)]))


def compute_segment_details(images: Sequence[Segments]) -> dict[str, Any]:
    """Return class metrics, worst and best images of a panoptic model."""
    known = [each.stats for each in images if each.stats is not None]
    extremes: dict[str, Any] = select_images(
        *([dict(index=each.index, pq=each.quality)
           for each in found] for found in (find_worst_segments(images, NUM_WORST),
                                            find_best_segments(images, NUM_BEST))))
    if not known:
        return extremes
    stats = np.sum(known, axis=0)
    qualities = {name.lower(): to_json(values) for name, values in compute_qualities(stats).items()}
    num_segments = (stats[:, 1] + stats[:, 3]).astype(int).tolist()
    return dict(classes=dict(segments=num_segments, **qualities), **extremes)


def compute_box_details(images: Sequence[Detections], dataset: Any,
                        metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """Return the same for a detector, with precision-recall curves."""
    num_classes = len(dataset.metainfo['classes'])
    matches = [
        match_objects(image,
                      dataset.get_data_info(image.index)['instances'], num_classes)
        for image in images
    ]
    classes: dict[str, list] = count_objects(matches, num_classes)
    curves: dict[str, Any] = {}
    truth = find_truth(metrics, dataset)
    if truth is not None:
        has_masks = images[0].masks is not None and all('segmentation' in item
                                                        for item in truth.api.anns.values())
        half = int(np.argmin(np.abs(np.asarray(truth.iou_thrs) - 0.5)))
        for kind in ('bbox', 'segm') if has_masks else ('bbox', ):
            precision = compute_precision(truth, images, kind)
            classes[f'{kind}_ap'] = to_json(precision.mean(axis=(0, 1)))
            classes[f'{kind}_ap50'] = to_json(precision[half].mean(axis=0))
            curves[kind] = select_curves(precision[half])
    return dict(
        classes=classes,
        curves=curves,
        confusion=count_pairs(matches),
        **select_images(*([
            dict(index=each.index, f1=each.f1, right=each.right, missed=each.missed,
                 wrong=each.wrong) for each in found
        ] for found in (find_worst_matches(matches, NUM_WORST),
                        find_best_matches(matches, NUM_BEST)))))  # yapf: disable


def select_images(worst: list[dict[str, Any]], best: list[dict[str, Any]]) -> dict[str, list]:
    """Return the worst images, and the best of the others."""
    taken = {each['index'] for each in worst}
    return dict(worst=worst, best=[each for each in best if each['index'] not in taken])


def count_objects(matches: Sequence[Matches], num_classes: int) -> dict[str, list]:
    """Return the number of objects, precision and recall of each class."""
    table = np.zeros((num_classes + 1, num_classes + 1), dtype=np.int64)
    for truth, found, count in count_pairs(matches):
        table[truth, found] = count
    right, objects, detected = np.diag(table)[:-1], table.sum(1)[:-1], table.sum(0)[:-1]
    with np.errstate(invalid='ignore', divide='ignore'):
        precision, recall = right / detected, right / objects
    return dict(objects=objects.tolist(), precision=to_json(precision), recall=to_json(recall))


def select_curves(precision: np.ndarray) -> list[dict[str, Any]]:
    """Return precision-recall curves ``(101, K)``: the mean, and the best and worst classes."""
    ap = precision.mean(axis=0)
    order = [int(each) for each in np.argsort(-ap, kind='stable') if np.isfinite(ap[each])]
    if not order:
        return []
    chosen = order
    if len(order) > 2 * NUM_CURVES:
        chosen = [*order[:NUM_CURVES], *order[-NUM_CURVES:]]
    mean = dict(label=None, precision=to_json(precision[:, order].mean(axis=1)))
    return [mean, *(dict(label=k, precision=to_json(precision[:, k])) for k in chosen)]


def to_json(values: np.ndarray) -> list[float | None]:
    """Return values with five digits, and None for NaN, which JSON lacks."""
    return [round(float(value), 5) if np.isfinite(value) else None for value in values]
