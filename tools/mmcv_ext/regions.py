"""RoIAlign and RoIPool.

Shapes: maps ``(B, C, H, W)``; ``k`` regions ``(k, 5)``: the index of their image, then left, top,
right, bottom.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .common import MISSING, OPERATORS, widened


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, *, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:
    """RoIAlign (arXiv 1703.06870) of maps ``(B, C, H, W)`` to ``output`` ``(k, C, h, w)``."""
    require_average(pool_mode)
    output.copy_(
        OPERATORS.roi_align(
            widened(input), widened(rois), spatial_scale, aligned_height, aligned_width,
            sampling_ratio, aligned))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, *, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:
    """The gradient of :func:`roi_align_forward` by its maps, to ``grad_input``."""
    require_average(pool_mode)
    grad_input.copy_(
        OPERATORS._roi_align_backward(
            widened(grad_output), widened(rois), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned))


def require_average(pool_mode: int) -> None:
    """Raise a NotImplementedError for RoIAlign that takes maxima."""
    if pool_mode != 1:
        raise NotImplementedError(MISSING.format("roi_align with pool_mode='max'"))


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor, *,
                     pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """RoIPool (arXiv 1504.08083) of maps ``(B, C, H, W)`` to ``output`` ``(k, C, h, w)``.

    mmcv does not round the regions as torchvision does: each cell is a region of torchvision's.
    ``argmax``, as ``output``, gets the flat index of each maximum in its map, -1 in empty cells.
    """
    regions = widened(rois)
    first, last = regions[:, 1:3] * spatial_scale, (regions[:, 3:] + 1) * spatial_scale
    left, right = edges(first[:, 0], last[:, 0], pooled_width, input.shape[3])
    top, bottom = edges(first[:, 1], last[:, 1], pooled_height, input.shape[2])
    cells = torch.stack(
        torch.broadcast_tensors(regions[:, 0, None, None], left[:, None], top[..., None],
                                right[:, None] - 1, bottom[..., None] - 1), -1)  # (k, h, w, 5)
    found = OPERATORS.roi_pool(widened(input), cells.flatten(0, 2), 1, 1, 1)
    for target, values in zip((output, argmax), found, strict=True):
        target.copy_(values.view(*cells.shape[:3], input.shape[1]).permute(0, 3, 1, 2))


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor, *,
                      pooled_height: int, pooled_width: int, spatial_scale: float) -> None:
    """The gradient of :func:`roi_pool_forward` by its maps, to ``grad_input``."""
    grad_input.copy_(
        OPERATORS._roi_pool_backward(
            widened(grad_output), widened(rois), argmax, spatial_scale, pooled_height, pooled_width,
            *grad_input.shape))


def edges(first: Tensor, last: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Of cells from ``first`` to ``last`` ``(k,)``: ``(k, count)``; empty ones lie at ``size``."""
    step = ((last - first) / count)[:, None]
    index = torch.arange(count, device=first.device)
    low = (index * step + first[:, None]).floor().clamp(0, size)
    high = ((index + 1) * step + first[:, None]).ceil().clamp(0, size)
    empty = (step <= 0) | (high <= low)
    return low.masked_fill(empty, size), high.masked_fill(empty, size)
