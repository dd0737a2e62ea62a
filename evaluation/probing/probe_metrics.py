"""mIoU of predictions for patches, at the full resolution of the label maps.

Shapes: ``h, w`` the grid of patches, ``H, W`` height and width of a label map, ``C`` channels,
``K`` classes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from mmseg.evaluation import IoUMetric
from torch import Tensor
from torch.nn import functional as F

from colonnade.common.errors import UserError
from colonnade.common.progress import no_progress
from colonnade.datasets.custom.label_maps import IGNORED

from .probe_data import Sample

MOST_SCORES = 2**25  # of pixels and classes, that are in memory at once: 128 MiB


@torch.no_grad()
def iou_of_classes(predict: Callable[[Tensor], Tensor],
                   features: Sequence[Tensor],
                   samples: Sequence[Sample],
                   num_classes: int,
                   device: str = 'cpu',
                   progress: Callable[[int], None] = no_progress) -> np.ndarray:
    """Intersection over union ``(K)`` of all images, by the formulas of mmseg's ``IoUMetric``.

    Args:
        predict: Features of patches ``(n, C)`` to scores ``(n, K)``.
        features: Of each image, ``(h, w, C)``.
        samples: Their label maps.
        num_classes: ``K``.
        device: Where ``predict`` runs.
        progress: Called with the number of images that are done, after each.

    Returns:
        NaN for classes that are neither in label maps nor in predictions.

    Raises:
        ValueError: If no pixel is labelled.
    """
    areas = torch.zeros(4, num_classes, dtype=torch.float64)
    for done, (each, sample) in enumerate(zip(features, samples, strict=True), 1):
        label_map = torch.from_numpy(sample.label_map()).long()
        scores = predict(each.flatten(0, 1).to(device).float()).unflatten(0, each.shape[:2])
        predicted = full_resolution(scores, tuple(label_map.shape)).cpu()
        areas += torch.stack(
            IoUMetric.intersect_and_union(predicted, label_map, num_classes, IGNORED))
        progress(done)
    if not areas[-1].any():
        raise UserError('no pixel of the validation images is labelled')
    return IoUMetric.total_area_to_metrics(*areas)['IoU']


def mean_iou(iou: np.ndarray) -> float:
    """mIoU in percent, over the classes that there are."""
    return float(np.nanmean(iou) * 100)


def full_resolution(scores: Tensor, size: tuple[int, ...]) -> Tensor:
    """The best class of each pixel, of scores that are resized bilinearly, some classes at a time.

    Args:
        scores: ``(h, w, K)``.
        size: ``(H, W)``.

    Returns:
        Classes ``(H, W)``.
    """
    best = scores.new_full(size, -torch.inf)
    classes = torch.zeros(size, dtype=torch.long, device=scores.device)
    at_once = max(1, MOST_SCORES // (size[0] * size[1]))
    for first in range(0, scores.shape[2], at_once):
        part = scores[:, :, first:first + at_once].permute(2, 0, 1)[None]
        values, places = F.interpolate(part, size=size, mode='bilinear')[0].max(dim=0)
        is_better = values > best
        best = torch.where(is_better, values, best)
        classes = torch.where(is_better, places + first, classes)
    return classes
