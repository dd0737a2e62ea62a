"""Non-maximum suppression.

Shapes: ``n`` boxes ``(n, 4)`` as left, top, right, bottom.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .common import OPERATORS, promote


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices ``(m,)`` of the remaining boxes, highest score first.

    Args:
        boxes: Boxes ``(n, 4)``.
        scores: Scores ``(n,)``.
        iou_threshold: Boxes with a larger IoU with a better box are suppressed.
        offset: 1 if right and bottom are inclusive pixels, 0 if they are edges.
    """
    edges = torch.cat((promote(boxes[:, :2]), promote(boxes[:, 2:]) + offset), 1)
    precision = torch.promote_types(edges.dtype, scores.dtype)
    return OPERATORS.nms(edges.to(precision), scores.to(precision), iou_threshold)


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:
    """Run Soft-NMS (arXiv 1704.04503), which lowers scores of boxes that overlap better ones.

    Args:
        boxes: Boxes ``(n, 4)``.
        scores: Scores ``(n,)``.
        dets: Output ``(n, 5)``, whose first m rows become boxes and new scores.
        iou_threshold: IoU from which scores fall; not used by method 2.
        sigma: Width of method 2.
        min_score: Minimum score of remaining boxes.
        method: 0 naive, 1 linear, 2 Gaussian.
        offset: See :func:`nms`.

    Returns:
        Indices ``(m,)`` of the remaining boxes, highest score first.
    """
    boxes, current = promote(boxes), promote(scores).clone()
    left = torch.arange(len(boxes), device=boxes.device)
    kept: list[Tensor] = []
    while len(left):
        best = current[left].argmax()
        index = left[best]
        dets[len(kept), :4], dets[len(kept), 4] = boxes[index], current[index]
        kept.append(index)
        left = torch.cat((left[:best], left[best + 1:]))
        iou = compute_ious(boxes[index], boxes[left], offset)
        if method == 2:
            factor = torch.exp(-iou.square() / sigma)
        else:
            lowered = 1 - iou if method == 1 else torch.zeros_like(iou)
            factor = torch.where(iou >= iou_threshold, lowered, torch.ones_like(iou))
        current[left] *= factor
        left = left[current[left] >= min_score]
    return torch.stack(kept) if kept else left


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Return groups of indices: each remaining box, followed by the boxes that it suppresses.

    Args:
        dets: Boxes and scores ``(n, 5)``.
        iou_threshold: Boxes with at least this IoU with a better box are suppressed.
    """
    boxes, groups = promote(dets[:, :4]), []
    left = dets[:, 4].argsort(descending=True)
    while len(left):
        first, others = left[0], left[1:]
        matched = compute_ious(boxes[first], boxes[others], 0) >= iou_threshold
        groups.append([int(first), *others[matched].tolist()])
        left = others[~matched]
    return groups


def compute_ious(box: Tensor, boxes: Tensor, offset: int) -> Tensor:
    """Return the IoUs ``(n,)`` of a box ``(4,)`` with others ``(n, 4)``."""
    low = torch.maximum(box[:2], boxes[:, :2])
    high = torch.minimum(box[2:], boxes[:, 2:])
    shared = (high - low + offset).clamp_min(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)
    return shared / ((box[2:] - box[:2] + offset).prod() + areas - shared)
