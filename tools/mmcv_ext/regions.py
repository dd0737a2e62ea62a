"""RoIAlign and RoIPool.

Shapes: feature maps ``(B, C, H, W)``; ``k`` RoIs ``(k, 5)``: image index, left, top, right, bottom.
"""
from __future__ import annotations

import torch
from torch import Tensor

from .common import MISSING, OPERATORS, promote

DENSE = 16384  # largest map, in pixels, of which every pixel gets a weight in every cell
REACH = 8  # multiple of the map's size; RoIs beyond it have too many samples
BLOCK = 1 << 22  # numbers in memory between the two matmuls


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
    height, width = grad_input.shape[2:]
    exact = promote(rois)
    edges = exact[:, 1:] * spatial_scale - (0.5 if aligned else 0.)
    if grad_output.device.type == 'cpu' and height * width <= DENSE and len(rois) and bool(
            edges.abs().amax() <= REACH * max(height, width)):  # not if NaN
        left, top, right, bottom = edges.unbind(1)
        down = compute_weights(top, bottom, aligned_height, height, sampling_ratio, aligned)
        across = compute_weights(left, right, aligned_width, width, sampling_ratio, aligned)
        add_by_matmuls(grad_input, promote(grad_output), exact[:, 0], down, across)
        return
    grad_input.copy_(
        OPERATORS._roi_align_backward(
            promote(grad_output), promote(rois), spatial_scale, aligned_height, aligned_width,
            *grad_input.shape, sampling_ratio, aligned))


def compute_weights(low: Tensor, high: Tensor, num_cells: int, size: int, sampling_ratio: int,
                    aligned: bool) -> Tensor:
    """Return the weight of each pixel of an axis in each cell of RoIs, ``(k, num_cells, size)``.

    Args:
        low: Starts of the RoIs on the axis ``(k,)``, in pixels.
        high: Their ends.
        num_cells: Cells of an RoI.
        size: Pixels of the axis.
        sampling_ratio: Samples in a cell; 0 for one per pixel, as in the forward pass.
        aligned: Whether RoIs may be smaller than a pixel.
    """
    length = high - low if aligned else (high - low).clamp_min(1)
    step = (length / num_cells)[:, None, None]
    samples = torch.full_like(step, sampling_ratio) if sampling_ratio > 0 else \
        step.ceil().clamp_min(0)
    sample = torch.arange(int(samples.amax().clamp_min(1)), dtype=step.dtype)
    cell = torch.arange(num_cells, dtype=step.dtype)[:, None]
    at = low[:, None, None] + cell * step + (sample + 0.5) * step / samples.clamp_min(1)
    weight = ((sample < samples) & (at >= -1) & (at <= size)) / samples.clamp_min(1)
    at = at.clamp(0, size - 1)
    before = at.floor()
    fraction, index = at - before, before.long()
    weights = step.new_zeros(len(low), num_cells, size)
    weights.scatter_add_(2, index, weight * (1 - fraction))
    return weights.scatter_add_(2, (index + 1).clamp_max_(size - 1), weight * fraction)


def add_by_matmuls(out: Tensor, gradients: Tensor, images: Tensor, down: Tensor,
                   across: Tensor) -> None:
    """Write the sum of gradients of RoIs, spread over the pixels of their images.

    Weights of RoIAlign are separable. On small maps, two matmuls with them in dense form are many
    times faster than torchvision's kernel, which adds one value at a time in one thread.

    Args:
        out: Gradient of the maps ``(B, C, H, W)``, written.
        gradients: Gradient of the RoIs ``(k, C, P, Q)``.
        images: Index of the image of each RoI ``(k,)``.
        down: Weights of rows ``(k, P, H)``.
        across: Weights of columns ``(k, Q, W)``.
    """
    channels, height, width = out.shape[1:]
    cells = gradients.permute(0, 2, 1, 3).flatten(1, 2)  # (k, P * C, Q)
    block = max(1, BLOCK // (cells.shape[1] * width))
    for index, target in enumerate(out):
        total = target.new_zeros(height, channels * width, dtype=gradients.dtype)
        for rois in (images == index).nonzero()[:, 0].split(block):
            rows = torch.bmm(cells[rois], across[rois]).view(-1, channels * width)
            total.addmm_(down[rois].flatten(0, 1).T, rows)
        target.copy_(total.view(height, channels, width).transpose(0, 1))


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
