"""RoIAlign and RoIPool.

Shapes: feature maps ``(B, C, H, W)``; ``k`` RoIs ``(k, 5)``: image index, left, top, right, bottom.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .common import MISSING, OPERATORS, promote


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, *, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """Write RoIAlign (arXiv 1703.06870) to ``output`` ``(k, C, h, w)``."""
    check_pool_mode(pool_mode)
    output.copy_(
        OPERATORS.roi_align(
            promote(input), promote(rois), spatial_scale, aligned_height, aligned_width,
            sampling_ratio, aligned))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, *, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:
    """Write the gradient of :func:`roi_align_forward` for feature maps."""
    check_pool_mode(pool_mode)
    grad_input.copy_(
        OPERATORS._roi_align_backward(
            promote(grad_output), promote(rois), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned))


def check_pool_mode(pool_mode: int) -> None:
    """Raise a NotImplementedError for RoIAlign with maximum pooling."""
    if pool_mode != 1:
        raise NotImplementedError(MISSING.format("roi_align with pool_mode='max'"))


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, *,
                     pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """Write RoIPool (arXiv 1504.08083) to ``output`` ``(k, C, h, w)``.

    mmcv rounds differently than torchvision, so each cell is a RoI of torchvision. ``argmax`` gets
    the flat index of each maximum in its feature map, -1 in empty cells.
    """
    boxes = promote(rois)
    first, last = boxes[:, 1:3] * spatial_scale, (boxes[:, 3:] + 1) * spatial_scale
    left, right = compute_edges(first[:, 0], last[:, 0], pooled_width, input.shape[3])
    top, bottom = compute_edges(first[:, 1], last[:, 1], pooled_height, input.shape[2])
    cells = torch.stack(
        torch.broadcast_tensors(boxes[:, 0, None, None], left[:, None], top[..., None],
                                right[:, None] - 1, bottom[..., None] - 1), -1)  # (k, h, w, 5)
    pooled = OPERATORS.roi_pool(promote(input), cells.flatten(0, 2), 1, 1, 1)
    for target, values in zip((output, argmax), pooled, strict=True):
        target.copy_(values.view(*cells.shape[:3], input.shape[1]).permute(0, 3, 1, 2))


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, *,
                      pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """Write the gradient of :func:`roi_pool_forward` for feature maps."""
    grad_input.copy_(
        OPERATORS._roi_pool_backward(
            promote(grad_output), promote(rois), argmax, spatial_scale, pooled_height, pooled_width,
            *grad_input.shape))


def compute_edges(first: Tensor, last: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Return the edges ``(k, count)`` of cells; those of empty cells are ``size``."""
    step = ((last - first) / count)[:, None]
    index = torch.arange(count, device=first.device)
    low = (index * step + first[:, None]).floor().clamp(0, size)
    high = ((index + 1) * step + first[:, None]).ceil().clamp(0, size)
    empty = (step <= 0) | (high <= low)
    return low.masked_fill(empty, size), high.masked_fill(empty, size)
