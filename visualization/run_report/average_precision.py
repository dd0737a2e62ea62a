"""Average precision of each class as COCO defines it, with curves of precision over recall."""
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
from .detections import Detections

try:
    import faster_coco_eval
except ImportError:
    faster_coco_eval = None

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
OTHER_PROTOCOLS = ('LVISMetric', )  # their annotations say less of an image than COCO's
IOUS = tuple(np.linspace(0.5, 0.95, 10))
MAX_DETECTIONS = 100  # of an image, where no metric says


@dataclass(frozen=True)
class CocoTruth:
    """Annotations, and how detections are compared with them.

    Attributes:
        api: COCO object of faster_coco_eval or pycocotools.
        img_ids: IDs of the images that are evaluated.
        cat_ids: Category ID of each label.
        places: Class of each category among those of the dataset, which may be more.
        num_classes: ``K``, of the dataset.
        iou_thrs: IoU from which a detection is right.
        max_detections: Detections of an image that count.
        by_index: Whether images are identified by their index in the dataset.
    """
    api: Any
    img_ids: Sequence[Any]
    cat_ids: Sequence[int]
    places: Sequence[int]
    num_classes: int
    iou_thrs: Sequence[float] = IOUS
    max_detections: int = MAX_DETECTIONS
    by_index: bool = False

    @property
    def has_masks(self) -> bool:
        """Whether every object is annotated with a mask."""
        return all('segmentation' in item for item in self.api.anns.values())

    def spread_classes(self, values: np.ndarray, cat_ids: Sequence[int]) -> np.ndarray:
        """Return values ``(..., C)`` of categories as ``(..., K)`` of classes, NaN elsewhere."""
        place_of = dict(zip(self.cat_ids, self.places, strict=True))
        spread = np.full((*values.shape[:-1], self.num_classes), np.nan)
        spread[..., [place_of[cat_id] for cat_id in cat_ids]] = values
        return spread


@dataclass(frozen=True)
class Precision:
    """Average precision of each class.

    Attributes:
        ap: Mean over all IoU thresholds, ``(K,)``; NaN for classes without objects.
        ap50: The same at IoU 0.5.
        at_50: Precision at each of 101 values of recall and IoU 0.5, ``(101, K)``.
    """
    ap: np.ndarray
    ap50: np.ndarray
    at_50: np.ndarray


def get_coco_library() -> tuple[type, type]:
    """Return COCO and its evaluation, of faster_coco_eval where it is installed."""
    if faster_coco_eval is None:
        return COCO, COCOeval
    return faster_coco_eval.COCO, faster_coco_eval.COCOeval_faster


def find_truth(metrics: Iterable[BaseMetric], dataset: Any) -> CocoTruth | None:
    """Return the annotations that COCO's metric of a run has, or else those of the dataset.

    Returns:
        None for metrics of another protocol, LVIS's, for which boxes do not suffice.
    """
    classes = list(dataset.metainfo['classes'])
    named = {type(metric).__name__: metric for metric in metrics}
    if any(name in named for name in OTHER_PROTOCOLS):
        return None
    metric = next((named[name] for name in COCO_METRICS if name in named), None)
    if metric is not None and get_coco_api(metric) is not None and metric.cat_ids is not None:
        api = get_coco_api(metric)
        # pycocotools averages over 100 detections, faster_coco_eval over the largest number
        limit = MAX_DETECTIONS
        if type(metric).__name__ == 'FasterCocoMetric':
            limit = max(metric.proposal_nums)
        for annotation in api.anns.values():
            annotation.setdefault('iscrowd', 0)
        places = [classes.index(api.cats[each]['name']) for each in metric.cat_ids]
        return CocoTruth(api, metric.img_ids, metric.cat_ids, places, len(classes), metric.iou_thrs,
                         limit)
    api = get_coco_library()[0]()
    with redirect_stdout(StringIO()):  # pycocotools prints its progress
        api.dataset = build_coco_content(dataset)
        api.createIndex()
    labels = list(range(len(classes)))
    return CocoTruth(api, list(range(len(dataset))), labels, labels, len(labels), by_index=True)


def build_coco_content(dataset: Any) -> dict[str, Any]:
    """Return the annotations of a dataset as the content of a COCO file, with indices as IDs."""
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
    """Return the average precision of detections.

    Args:
        truth: Annotations.
        images: Detections of all images.
        kind: ``'bbox'`` or ``'segm'``.
    """
    entries = [entry for image in images
               for entry in image.to_coco(truth.cat_ids, kind, truth.by_index)]  # yapf: disable
    if not entries:  # pycocotools cannot evaluate this
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
