"""From the answers of an evaluation to numbers of JSON."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from . import detections, label_counts
from .average_precision import average_precision, truth_of
from .detections import Found, Matches
from .label_counts import Labelled

WORST = 8  # images
CURVES = 3  # classes of highest and of lowest AP50 whose curves are kept


def evidence_of(found: Sequence[Found | Labelled], dataset: Any,
                metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """What :func:`evidence_of_boxes` or :func:`evidence_of_pixels` says of all images."""
    boxes = [each for each in found if isinstance(each, Found)]
    pixels = [each for each in found if isinstance(each, Labelled)]
    return evidence_of_boxes(boxes, dataset, metrics) if boxes else evidence_of_pixels(pixels)


def evidence_of_boxes(found: Sequence[Found], dataset: Any,
                      metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """AP of each class, curves, confusion and the worst images of a detector.

    Args:
        found: The detections of all images.
        dataset: The validation set.
        metrics: Of the run.
    """
    number = len(dataset.metainfo['classes'])
    matches = [
        detections.match(each,
                         dataset.get_data_info(each.index)['instances'], number) for each in found
    ]
    classes: dict[str, list] = counts_of(matches, number)
    curves: dict[str, Any] = {}
    truth = truth_of(metrics, dataset)
    if truth is not None:
        masked = truth.has_masks and found[0].masks is not None
        for kind in ('bbox', 'segm') if masked else ('bbox', ):
            measured = average_precision(truth, found, kind)
            classes |= {f'{kind}_ap': numbers(measured.ap), f'{kind}_ap50': numbers(measured.ap50)}
            curves[kind] = chosen_curves(measured.at_50)
    return dict(
        classes=classes,
        curves=curves,
        confusion=detections.confusion(matches),
        worst=[
            dict(index=each.index, f1=each.f1, right=each.right, missed=each.missed,
                 wrong=each.wrong) for each in detections.worst(matches, WORST)
        ])  # yapf: disable


def counts_of(matches: Sequence[Matches], number: int) -> dict[str, list]:
    """Objects, precision and recall of each class at the threshold of :mod:`.detections`."""
    table = np.zeros((number + 1, number + 1), dtype=np.int64)
    for truth, found, count in detections.confusion(matches):
        table[truth, found] = count
    right, objects, answers = np.diag(table)[:-1], table.sum(1)[:-1], table.sum(0)[:-1]
    with np.errstate(invalid='ignore', divide='ignore'):
        precision, recall = right / answers, right / objects
    return dict(objects=objects.tolist(), precision=numbers(precision), recall=numbers(recall))


def chosen_curves(precision: np.ndarray) -> list[dict[str, Any]]:
    """Precision over recall: the mean of the classes, and those that are easiest and hardest.

    Args:
        precision: ``(101, K)``.
    """
    ap = precision.mean(axis=0)
    order = [int(each) for each in np.argsort(-ap, kind='stable') if np.isfinite(ap[each])]
    if not order:
        return []
    chosen = order if len(order) <= 2 * CURVES else [*order[:CURVES], *order[-CURVES:]]
    mean = dict(label=None, precision=numbers(precision[:, order].mean(axis=1)))
    return [mean, *(dict(label=k, precision=numbers(precision[:, k])) for k in chosen)]


def evidence_of_pixels(images: Sequence[Labelled]) -> dict[str, Any]:
    """IoU of each class, confusion and the worst images of a segmenter."""
    counts = label_counts.confusion(images)
    scores = label_counts.scores_of(counts)
    pairs = np.argwhere(counts[:-1])
    return dict(
        classes=dict(
            pixels=counts[:-1].sum(axis=1).tolist(),
            iou=numbers(scores['iou']),
            acc=numbers(scores['acc'])),
        confusion=[[int(t), int(p), int(counts[t, p])] for t, p in pairs],
        worst=[dict(index=e.index, miou=m) for e, m in label_counts.worst(images, WORST)])


def numbers(values: np.ndarray) -> list[float | None]:
    """Values of JSON, which has no NaN; five digits."""
    return [round(float(value), 5) if np.isfinite(value) else None for value in values]
