"""Class metrics, confusion and worst images of an evaluation.

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

from colonnade.datasets.rle import encode_segmentation, make_json_rle

from ..upstream import get_coco_api
from .predictions import (Detections, Matches, PixelCounts, compute_scores, count_confusion,
                          count_pairs, find_worst_maps, find_worst_matches, match_objects)

try:
    import faster_coco_eval
except ImportError:
    faster_coco_eval = None

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
OTHER_PROTOCOLS = ('LVISMetric', )  # metrics of datasets that do not annotate all objects
IOUS = tuple(np.linspace(0.5, 0.95, 10))
MAX_DETECTIONS = 100  # per image, as in pycocotools
NUM_WORST = 8  # images
NUM_CURVES = 3  # classes of highest and of lowest AP50 whose curves are stored


@dataclass(frozen=True)
class CocoTruth:
    """Annotations of a dataset, and how detections are compared with them."""
    api: Any  # COCO object of faster_coco_eval or pycocotools
    img_ids: Sequence[Any]  # IDs of the evaluated images
    cat_ids: Sequence[int]  # category ID of each label
    places: Sequence[int]  # class of each category in the dataset, which may have more
    num_classes: int  # K, of the dataset
    iou_thrs: Sequence[float] = IOUS
    max_detections: int = MAX_DETECTIONS  # per image
    by_index: bool = False  # whether IDs of images are indices in the dataset

    @property
    def has_masks(self) -> bool:
        """True if every object has a mask."""
        return all('segmentation' in item for item in self.api.anns.values())

    def spread_classes(self, values: np.ndarray, cat_ids: Sequence[int]) -> np.ndarray:
        """Return values ``(..., C)`` of categories as ``(..., K)`` of classes, NaN elsewhere."""
        place_of = dict(zip(self.cat_ids, self.places, strict=True))
        spread = np.full((*values.shape[:-1], self.num_classes), np.nan)
        spread[..., [place_of[cat_id] for cat_id in cat_ids]] = values
        return spread


@dataclass(frozen=True)
class Precision:
    """Average precision of each class."""
    ap: np.ndarray  # mean over all IoU thresholds, (K,); NaN for classes without objects
    ap50: np.ndarray  # at IoU 0.5
    at_50: np.ndarray  # precision at 101 recall values and IoU 0.5, (101, K)


def get_coco_library() -> tuple[type, type]:
    """Return COCO and its evaluation, from faster_coco_eval if it is installed."""
    if faster_coco_eval is None:
        return COCO, COCOeval
    return faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster


def find_truth(metrics: Iterable[BaseMetric], dataset: Any) -> CocoTruth | None:
    """Return the annotations of COCO's metric, or else of the dataset; None for LVIS."""
    classes = list(dataset.metainfo['classes'])
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
        places = [classes.index(api.cats[each]['name']) for each in metric.cat_ids]
        return CocoTruth(api, metric.img_ids, metric.cat_ids, places, len(classes), metric.iou_thrs,
                         limit)
    api = get_coco_library()[0]()
    with redirect_stdout(StringIO()):  # pycocotools prints its progress.
        api.dataset = build_coco_content(dataset)
        api.createIndex()
    labels = list(range(len(classes)))
    return CocoTruth(api, list(range(len(dataset))), labels, labels, len(labels), by_index=True)


def build_coco_content(dataset: Any) -> dict[str, Any]:
    """Return the annotations of a dataset as a COCO file, with indices as image IDs."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        size = info['height'], info['width']
        images.append(dict(id=index, height=size[0], width=size[1]))
        for item in info['instances']:
            left, top, right, bottom = map(float, item['bbox'])
            annotation = dict(
                id=len(annotations) + 1,
                image_id=index,
                category_id=int(item['bbox_label']),
                bbox=[left, top, right - left, bottom - top],
                area=(right - left) * (bottom - top),
                iscrowd=int(item.get('ignore_flag', 0)))
            if 'mask' in item:
                annotation['segmentation'] = make_json_rle(encode_segmentation(item['mask'], size))
            annotations.append(annotation)
    categories = [dict(id=i, name=name) for i, name in enumerate(dataset.metainfo['classes'])]
    return dict(images=images, annotations=annotations, categories=categories)


def compute_average_precision(truth: CocoTruth, images: Sequence[Detections],
                              kind: str) -> Precision:
    """Return the average precision of the ``'bbox'`` or ``'segm'`` of detections."""
    entries = [entry for image in images
               for entry in image.to_coco(truth.cat_ids, kind, truth.by_index)]  # yapf: disable
    if not entries:  # pycocotools fails without detections.
        present = {item['category_id'] for item in truth.api.anns.values()}
        zeros = np.array([0. if each in present else np.nan for each in truth.cat_ids])
        ap = truth.spread_classes(zeros, truth.cat_ids)
        return Precision(ap, ap, np.broadcast_to(ap, (101, len(ap))))
    library = get_coco_library()
    evaluation_class = library[1] if isinstance(truth.api, library[0]) else COCOeval
    with redirect_stdout(StringIO()):
        evaluation = evaluation_class(truth.api, truth.api.loadRes(entries), kind)
        params = evaluation.params
        params.catIds, params.imgIds = sorted(truth.cat_ids), list(truth.img_ids)
        params.maxDets, params.iouThrs = [truth.max_detections], np.asarray(truth.iou_thrs)
        params.areaRng, params.areaRngLbl = params.areaRng[:1], params.areaRngLbl[:1]
        evaluation.evaluate()
        evaluation.accumulate()
    values = np.array(evaluation.eval['precision'])[..., 0, 0]  # (thresholds, 101, classes)
    values = truth.spread_classes(np.where(values < 0, np.nan, values), sorted(truth.cat_ids))
    half = int(np.argmin(np.abs(np.asarray(truth.iou_thrs) - 0.5)))
    return Precision(values.mean(axis=(0, 1)), values[half].mean(axis=0), values[half])


def compute_details(images: Sequence[Detections | PixelCounts], dataset: Any,
                    metrics: Sequence[BaseMetric]) -> dict[str, Any]:
    """Return class metrics, confusion and worst images of an evaluation, ready for JSON."""
    boxes = [image for image in images if isinstance(image, Detections)]
    if boxes:
        return compute_box_details(boxes, dataset, metrics)
    maps = [image for image in images if isinstance(image, PixelCounts)]
    counts = count_confusion(maps)
    scores = {name: to_json(values) for name, values in compute_scores(counts).items()}
    return dict(
        classes=dict(pixels=counts[:-1].sum(axis=1).tolist(), **scores),
        confusion=[[int(t), int(p), int(counts[t, p])] for t, p in np.argwhere(counts[:-1])],
        worst=[dict(index=e.index, miou=m) for e, m in find_worst_maps(maps, NUM_WORST)])


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
        has_masks = truth.has_masks and images[0].masks is not None
        for kind in ('bbox', 'segm') if has_masks else ('bbox', ):
            precision = compute_average_precision(truth, images, kind)
            classes[f'{kind}_ap'] = to_json(precision.ap)
            classes[f'{kind}_ap50'] = to_json(precision.ap50)
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
