"""Average precision of each class as COCO defines it, with curves of precision over recall."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from colonnade.datasets.rle import encode_segmentation, make_json_rle

from .detections import Found

COCO_METRICS = ('CocoMetric', 'FasterCocoMetric')
OTHER_PROTOCOLS = ('LVISMetric', )  # whose annotations say less of an image than COCO's
IOUS = np.linspace(0.5, 0.95, 10)
MOST = 100  # detections of an image that count, where no metric says


@dataclass(frozen=True)
class CocoTruth:
    """Annotations with what says how detections are compared with them.

    Attributes:
        api: The COCO object of faster_coco_eval or pycocotools.
        img_ids: Those that are evaluated.
        cat_ids: The category of each label.
        places: The class of each category among those of the data set, which may be more.
        num_classes: ``K``, of the data set.
        iou_thrs: IoU from which a detection is right.
        most: Detections of an image that count.
        by_index: Whether images are called by their index in the data set.
    """
    api: Any
    img_ids: Sequence[Any]
    cat_ids: Sequence[int]
    places: Sequence[int]
    num_classes: int
    iou_thrs: np.ndarray
    most: int
    by_index: bool

    @property
    def has_masks(self) -> bool:
        """Whether every object is annotated with a mask."""
        return all('segmentation' in item for item in self.api.anns.values())

    def of_classes(self, values: np.ndarray) -> np.ndarray:
        """Values ``(..., C)`` of categories as those of classes, ``(..., K)``, NaN elsewhere."""
        spread = np.full((*values.shape[:-1], self.num_classes), np.nan)
        spread[..., list(self.places)] = values
        return spread


@dataclass(frozen=True)
class Precision:
    """What an evaluation says of each class.

    Attributes:
        ap: Mean over all IoU thresholds, ``(K,)``; NaN for classes without objects.
        ap50: The same at IoU 0.5.
        at_50: Precision at each of 101 values of recall and IoU 0.5, ``(101, K)``.
    """
    ap: np.ndarray
    ap50: np.ndarray
    at_50: np.ndarray


def coco_library() -> tuple[type, type]:
    """COCO and its evaluation, of faster_coco_eval where it is installed."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
        return COCO, COCOeval
    return COCO, COCOeval_faster


def truth_of(metrics: Iterable[BaseMetric], dataset: Any) -> CocoTruth | None:
    """The annotations as COCO's metric of the run has them, or else those of the data set.

    Args:
        metrics: Of the run, which have computed their values.
        dataset: The validation set.

    Returns:
        None for metrics of another protocol, LVIS's, which boxes alone do not suffice for.
    """
    classes = list(dataset.metainfo['classes'])
    kinds = {type(metric).__name__: metric for metric in metrics}
    if any(name in kinds for name in OTHER_PROTOCOLS):
        return None
    metric = next((kinds[name] for name in COCO_METRICS if name in kinds), None)
    if metric is not None and metric._coco_api is not None and metric.cat_ids is not None:
        # pycocotools averages over 100 detections, faster_coco_eval over the most there are
        most = MOST if type(metric).__name__ == 'CocoMetric' else max(metric.proposal_nums)
        for annotation in metric._coco_api.anns.values():
            annotation.setdefault('iscrowd', 0)
        places = [classes.index(metric._coco_api.cats[each]['name']) for each in metric.cat_ids]
        return CocoTruth(metric._coco_api, metric.img_ids, metric.cat_ids, places, len(classes),
                         np.asarray(metric.iou_thrs), most, False)
    api = coco_library()[0]()
    with redirect_stdout(StringIO()):  # pycocotools prints its progress
        api.dataset = coco_dataset(dataset)
        api.createIndex()
    images, labels = list(range(len(dataset))), list(range(len(classes)))
    return CocoTruth(api, images, labels, labels, len(labels), IOUS, MOST, True)


def coco_dataset(dataset: Any) -> dict[str, Any]:
    """The annotations of a data set in COCO's form, with indices for ids."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for index in range(len(dataset)):
        info = dataset.get_data_info(index)
        size = info['height'], info['width']
        images.append(dict(id=index, height=size[0], width=size[1]))
        for item in info['instances']:
            left, top, right, bottom = map(float, item['bbox'])
            entry = dict(
                id=len(annotations) + 1,
                image_id=index,
                category_id=int(item['bbox_label']),
                bbox=[left, top, right - left, bottom - top],
                area=(right - left) * (bottom - top),
                iscrowd=int(item.get('ignore_flag', 0)))
            if 'mask' in item:
                entry['segmentation'] = make_json_rle(encode_segmentation(item['mask'], size))
            annotations.append(entry)
    categories = [dict(id=i, name=name) for i, name in enumerate(dataset.metainfo['classes'])]
    return dict(images=images, annotations=annotations, categories=categories)


def average_precision(truth: CocoTruth, found: Sequence[Found], kind: str) -> Precision:
    """Evaluate detections.

    Args:
        truth: The annotations.
        found: The detections of all images.
        kind: ``'bbox'`` or ``'segm'``.
    """
    from pycocotools.cocoeval import COCOeval
    entries = [entry for each in found for entry in entries_of(each, truth, kind)]
    if not entries:  # which pycocotools cannot evaluate
        present = {item['category_id'] for item in truth.api.anns.values()}
        ap = np.array([0. if each in present else np.nan for each in truth.cat_ids])
        ap = truth.of_classes(ap)
        return Precision(ap, ap, np.broadcast_to(ap, (101, len(ap))))
    faster_coco, faster = coco_library()
    with redirect_stdout(StringIO()):
        evaluation = (faster if isinstance(truth.api, faster_coco) else COCOeval)(
            truth.api, truth.api.loadRes(entries), kind)
        settings = evaluation.params
        settings.catIds, settings.imgIds = list(truth.cat_ids), list(truth.img_ids)
        settings.maxDets, settings.iouThrs = [truth.most], truth.iou_thrs
        settings.areaRng, settings.areaRngLbl = settings.areaRng[:1], settings.areaRngLbl[:1]
        evaluation.evaluate()
        evaluation.accumulate()
    values = np.array(evaluation.eval['precision'])[..., 0, 0]  # (thresholds, 101, classes)
    values = values[..., np.argsort(np.argsort(truth.cat_ids))]  # which were sorted by their ids
    values = truth.of_classes(np.where(values < 0, np.nan, values))
    half = int(np.argmin(np.abs(truth.iou_thrs - 0.5)))
    return Precision(values.mean(axis=(0, 1)), values[half].mean(axis=0), values[half])


def entries_of(found: Found, truth: CocoTruth, kind: str) -> list[dict[str, Any]]:
    """The detections of an image in the form of COCO's result files."""
    entries: list[dict[str, Any]] = []
    scores = found.scores
    if kind == 'segm' and found.mask_scores is not None:
        scores = found.mask_scores
    for index, (left, top, right, bottom) in enumerate(found.boxes.tolist()):
        entry = dict(
            image_id=found.index if truth.by_index else found.img_id,
            category_id=truth.cat_ids[found.labels[index]],
            score=float(scores[index]))
        if kind == 'segm':
            entry['segmentation'] = make_json_rle((found.masks or ())[index])
        else:
            entry['bbox'] = [left, top, right - left, bottom - top]
        entries.append(entry)
    return entries
