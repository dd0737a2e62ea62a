"""Panoptic quality (arXiv 1801.00868), computed as COCO's panopticapi does.

Shapes: ``H, W`` height and width of an image, ``K`` classes, things first.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from mmdet.structures import INSTANCE_OFFSET
from mmengine.evaluator import BaseMetric
from mmengine.fileio import get, get_text
from mmengine.logging import print_log
from mmengine.registry import METRICS

from colonnade.common.errors import FileError, UserError
from colonnade.common.name_lists import format_names
from colonnade.datasets.segment_maps import VOID, decode_segment_ids

#: sum of IoU, and numbers of true positives, false positives and false negatives ``(K, 4)``
Stats: TypeAlias = np.ndarray


def compare_segments(truth: np.ndarray, segments: Sequence[Mapping[str, Any]],
                     predicted: np.ndarray, labels: Mapping[int, int], num_classes: int) -> Stats:
    """Match the segments of an image: those of one class with an IoU above 0.5 (equation 1).

    Args:
        truth: IDs of annotated segments ``(H, W)``, 0 for none.
        segments: ``id``, ``label`` and ``iscrowd`` of each annotated segment.
        predicted: IDs of predicted segments ``(H, W)``, 0 for none.
        labels: Label of each predicted segment.
        num_classes: Number of classes K.
    """
    stats = np.zeros((num_classes, 4))
    pairs, counts = np.unique(
        truth.ravel().astype(np.int64) << 32 | predicted.ravel(), return_counts=True)
    overlaps = {(pair >> 32, pair & 2**32 - 1): n
                for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)}  # yapf: disable
    true_areas = dict(zip(*np.unique(truth, return_counts=True), strict=True))
    areas = dict(zip(*np.unique(predicted, return_counts=True), strict=True))
    info = {segment['id']: segment for segment in segments}
    matched_truth, matched = set(), set()
    for (a, b), overlap in overlaps.items():
        if a not in info or b not in labels or info[a].get('iscrowd'):
            continue
        union = true_areas[a] + areas[b] - overlap - overlaps.get((VOID, b), 0)
        if info[a]['label'] == labels[b] and overlap / union > 0.5:
            stats[labels[b], :2] += overlap / union, 1
            matched_truth.add(a)
            matched.add(b)
    crowds = {info[a]['label']: a for a in info if info[a].get('iscrowd')}
    for a in info.keys() - matched_truth:
        if not info[a].get('iscrowd'):
            stats[info[a]['label'], 3] += 1
    for b in labels.keys() - matched:
        ignored = overlaps.get((VOID, b), 0) + overlaps.get((crowds.get(labels[b], -1), b), 0)
        if ignored / areas[b] <= 0.5:
            stats[labels[b], 2] += 1
    return stats


def compute_qualities(stats: Stats) -> dict[str, np.ndarray]:
    """Return PQ, SQ and RQ of each class in percent ``(K,)``, NaN if it does not occur (Eq. 2)."""
    iou, true_positives, false_positives, false_negatives = stats.T
    weight = true_positives + false_positives / 2 + false_negatives / 2
    weight[weight == 0] = np.nan
    quality = np.where(np.isnan(weight), np.nan, iou / np.maximum(true_positives, 1))
    return dict(PQ=100 * iou / weight, SQ=100 * quality, RQ=100 * true_positives / weight)


def summarize(stats: Stats) -> dict[str, float]:
    """Return PQ, SQ and RQ in percent, averaged over the classes that occur."""
    return {
        name: float(values[~np.isnan(values)].mean()) if not np.isnan(values).all() else 0.
        for name, values in compute_qualities(stats).items()
    }


@METRICS.register_module()
class PanopticQuality(BaseMetric):
    """Metrics of mmdet's ``CocoPanopticMetric`` without panopticapi, which PyPI does not have.

    They are ``PQ``, ``SQ`` and ``RQ`` of all classes, of things (``PQ_th``) and of stuff
    (``PQ_st``), in percent.

    Args:
        ann_file: JSON file of panoptic annotations in COCO's format.
        seg_prefix: Folder of their PNG images.
        classwise: Also return PQ, SQ and RQ of each class that occurs.
        **kwargs: Arguments of mmengine's ``BaseMetric``.

    Raises:
        ValueError: If the file has no panoptic annotations.
    """
    default_prefix = 'coco_panoptic'

    def __init__(self,
                 ann_file: str,
                 seg_prefix: str,
                 *,
                 classwise: bool = False,
                 **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ann_file = ann_file
        content = json.loads(get_text(ann_file))
        if not all('segments_info' in each for each in content.get('annotations', [{}])):
            raise UserError(f'{ann_file} has no panoptic annotations: expected segments_info')
        self.annotations = {each['image_id']: each for each in content['annotations']}
        # As heads and datasets number classes: things first.
        self.categories = sorted(content['categories'], key=lambda each: not each.get('isthing'))
        self.seg_prefix = seg_prefix
        self.classwise = classwise

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Compare predicted with annotated segments, for each image of a batch."""
        classes = self.dataset_meta['classes']
        known = {each['name']: each['id'] for each in self.categories if each['name'] in classes}
        if tuple(known) != tuple(classes):
            raise UserError(f'{self.ann_file} has the categories {format_names(tuple(known))}, '
                            f'but the dataset has the classes {format_names(classes)}')
        to_label = {category: label for label, category in enumerate(known.values())}
        for sample in data_samples:
            annotation = self.annotations[sample['img_id']]
            segments = [
                each | dict(label=to_label[each['category_id']])
                for each in annotation['segments_info'] if each['category_id'] in to_label
            ]
            predicted = sample['pred_panoptic_seg']['sem_seg'][0].cpu().numpy().astype(np.int64)
            values = np.unique(predicted)
            labels = {
                int(value) + 1: int(value % INSTANCE_OFFSET)  # 0 is no segment
                for value in values if value % INSTANCE_OFFSET < len(classes)
            }
            truth = self._read_segments(annotation['file_name'])
            if truth.shape != predicted.shape:
                raise UserError(f'{annotation["file_name"]} has shape {truth.shape}, but the '
                                f'prediction has shape {predicted.shape}')
            self.results.append(
                compare_segments(truth, segments, predicted + 1, labels, len(classes)))

    def _read_segments(self, file_name: str) -> np.ndarray:
        path = str(Path(self.seg_prefix) / file_name) if '://' not in self.seg_prefix else \
            f'{self.seg_prefix.rstrip("/")}/{file_name}'
        try:
            return decode_segment_ids(get(path))
        except FileError as error:
            raise FileError(f'cannot read {path}: {error}') from error

    def compute_metrics(self, results: list[Stats]) -> dict[str, float]:
        """Return the metrics of all images."""
        stats = np.sum(results, axis=0)
        classes = self.dataset_meta['classes']
        is_thing = np.isin(classes, self.dataset_meta['thing_classes'])
        metrics = summarize(stats)
        for suffix, chosen in (('th', is_thing), ('st', ~is_thing)):
            metrics |= {f'{key}_{suffix}': v for key, v in summarize(stats[chosen]).items()}
        rows = {
            name: summarize(row[None])
            for name, row in zip(classes, stats, strict=True) if row.any()
        }
        for name, row in rows.items():
            print_log(f'PQ {row["PQ"]:.1f}, SQ {row["SQ"]:.1f}, RQ {row["RQ"]:.1f}: {name}',
                      'current')
        if self.classwise:
            for name, row in rows.items():
                metrics |= {f'{name}_{key}': value for key, value in row.items()}
        return metrics
