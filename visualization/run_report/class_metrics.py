"""Metrics of classes and worst images of an evaluation, as JSON has them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from .average_precision import compute_average_precision, find_truth
from .detections import Detections, Matches, count_pairs, find_worst_matches, match_objects
from .pixel_counts import PixelCounts, compute_scores, count_confusion, find_worst_maps

NUM_WORST = 8  # images
NUM_CURVES = 3  # classes of highest and of lowest AP50 whose curves are kept


def compute_details(images: Sequence[Detections | PixelCounts], dataset: Any,
                    metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """Return metrics of classes, confusion and the worst images of an evaluation."""
    boxes = [image for image in images if isinstance(image, Detections)]
    maps = [image for image in images if isinstance(image, PixelCounts)]
    return compute_box_details(boxes, dataset, metrics) if boxes else compute_map_details(maps)


def compute_box_details(images: Sequence[Detections], dataset: Any,
                        metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """Return the same of a detector, with curves of precision over recall."""
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
        has_masks = truth.has_masks and images[0].masks is not None
        for kind in ('bbox', 'segm') if has_masks else ('bbox', ):
            precision = compute_average_precision(truth, images, kind)
            classes |= {
                f'{kind}_ap': to_json(precision.ap),
                f'{kind}_ap50': to_json(precision.ap50)
            }
            curves[kind] = select_curves(precision.at_50)
    return dict(
        classes=classes,
        curves=curves,
        confusion=count_pairs(matches),
        worst=[
            dict(index=each.index, f1=each.f1, right=each.right, missed=each.missed,
                 wrong=each.wrong) for each in find_worst_matches(matches, NUM_WORST)
        ])  # yapf: disable


def count_objects(matches: Sequence[Matches], num_classes: int) -> dict[str, list]:
    """Return objects, precision and recall of each class at the threshold of detections."""
    table = np.zeros((num_classes + 1, num_classes + 1), dtype=np.int64)
    for truth, found, count in count_pairs(matches):
        table[truth, found] = count
    right, objects, detected = np.diag(table)[:-1], table.sum(1)[:-1], table.sum(0)[:-1]
    with np.errstate(invalid='ignore', divide='ignore'):
        precision, recall = right / detected, right / objects
    return dict(objects=objects.tolist(), precision=to_json(precision), recall=to_json(recall))


def select_curves(precision: np.ndarray) -> list[dict[str, Any]]:
    """Return precision over recall: the mean, and the easiest and hardest classes.

    Args:
        precision: ``(101, K)``.
    """
    ap = precision.mean(axis=0)
    order = [int(each) for each in np.argsort(-ap, kind='stable') if np.isfinite(ap[each])]
    if not order:
        return []
    chosen = order
    if len(order) > 2 * NUM_CURVES:
        chosen = [*order[:NUM_CURVES], *order[-NUM_CURVES:]]
    mean = dict(label=None, precision=to_json(precision[:, order].mean(axis=1)))
    return [mean, *(dict(label=k, precision=to_json(precision[:, k])) for k in chosen)]


def compute_map_details(images: Sequence[PixelCounts]) -> dict[str, Any]:
    """Return IoU of each class, confusion and the worst images of a segmenter."""
    counts = count_confusion(images)
    classes = {name: to_json(values) for name, values in compute_scores(counts).items()}
    return dict(
        classes=dict(pixels=counts[:-1].sum(axis=1).tolist(), **classes),
        confusion=[[int(t), int(p), int(counts[t, p])] for t, p in np.argwhere(counts[:-1])],
        worst=[dict(index=e.index, miou=m) for e, m in find_worst_maps(images, NUM_WORST)])


def to_json(values: np.ndarray) -> list[float | None]:
    """Return values of JSON, which has no NaN, with five digits."""
    return [round(float(value), 5) if np.isfinite(value) else None for value in values]
