"""Suppression of boxes that overlap better ones.

Shapes: ``n`` boxes ``(n, 4)`` as left, top, right, bottom.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .common import OPERATORS, widened


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices ``(m,)`` of the boxes that stay, best first.

    Args:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        iou_threshold: Boxes that overlap a better one by more are suppressed.
        offset: 1 if right and bottom are the last pixels of a box, 0 if they are its edges.
    """
    edges = torch.cat((widened(boxes[:, :2]), widened(boxes[:, 2:]) + offset), 1)
    precision = torch.promote_types(edges.dtype, scores.dtype)
    return OPERATORS.nms(edges.to(precision), scores.to(precision), iou_threshold)


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:
    """Soft-NMS (arXiv 1704.04503): scores fall by overlap with better boxes.

    Args:
        boxes: ``(n, 4)``.
        scores: ``(n,)``.
        dets: ``(n, 5)``; its first m rows become boxes with their new scores.
        iou_threshold: Scores fall from this overlap on; not used by method 2.
        sigma: Width of method 2.
        min_score: Boxes below are left out.
        method: 0 naive, 1 linear, 2 Gaussian.
        offset: See :func:`nms`.

    Returns:
        Indices ``(m,)``, best first.
    """
    boxes, current = widened(boxes), widened(scores).clone()
    left = torch.arange(len(boxes), device=boxes.device)
    found: list[Tensor] = []
    while len(left):
        best = current[left].argmax()
        index = left[best]
        dets[len(found), :4], dets[len(found), 4] = boxes[index], current[index]
        found.append(index)
        left = torch.cat((left[:best], left[best + 1:]))
        overlap = overlaps(boxes[index], boxes[left], offset)
        if method == 2:
            factor = torch.exp(-overlap.square() / sigma)
        else:
            lowered = 1 - overlap if method == 1 else torch.zeros_like(overlap)
            factor = torch.where(overlap >= iou_threshold, lowered, torch.ones_like(overlap))
        current[left] *= factor
        left = left[current[left] >= min_score]
    return torch.stack(found) if found else left


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """For each box that stays, its index and those of the boxes that it suppresses.

    Args:
        dets: ``(n, 5)``, the score last.
        iou_threshold: Boxes that overlap a better one by as much are suppressed.
    """
    boxes, groups = widened(dets[:, :4]), []
    left = dets[:, 4].argsort(descending=True)
    while len(left):
        first, others = left[0], left[1:]
        matched = overlaps(boxes[first], boxes[others], 0) >= iou_threshold
        groups.append([int(first), *others[matched].tolist()])
        left = others[~matched]
    return groups


def overlaps(box: Tensor, boxes: Tensor, offset: int) -> Tensor:
    """Intersection over union of one box ``(4,)`` with others: ``(n,)``."""
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    shared = (high - low + offset).clamp_min(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)
    return shared / ((box[2:] - box[:2] + offset).prod() + areas - shared)
