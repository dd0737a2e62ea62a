"""Multi-scale deformable attention.

Shapes: ``B`` images, ``N`` positions of all ``L`` levels, ``Q`` queries, ``h`` heads of width
``d``, ``P`` points.
"""
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .common import promote


def ms_deform_attn_forward(value: Tensor, value_spatial_shapes: Tensor,
                           value_level_start_index: Tensor, sampling_locations: Tensor,
                           attention_weights: Tensor, *, im2col_step: int) -> Tensor:
    """Return multi-scale deformable attention (arXiv 2010.04159, equation 3).

    Args:
        value: Values ``(B, N, h, d)``.
        value_spatial_shapes: Height and width of each level, ``(L, 2)``.
        value_level_start_index: Index of the first position of each level, ``(L,)``.
        sampling_locations: Coordinates x, y from 0 to 1, ``(B, Q, h, L, P, 2)``.
        attention_weights: Weights ``(B, Q, h, L, P)``.
        im2col_step: Not used.

    Returns:
        ``(B, Q, h * d)``.
    """
    levels = zip(
        split_levels(value, value_spatial_shapes, value_level_start_index),
        value_spatial_shapes.tolist(),
        sampling_locations.unbind(3),
        attention_weights.unbind(3),
        strict=True)
    return sum(
        attend(promote(values), size, promote(points), promote(weights))
        for values, size, points, weights in levels).flatten(2).to(value.dtype)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor,
                            value_level_start_index: Tensor, sampling_locations: Tensor,
                            attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
                            grad_sampling_loc: Tensor, grad_attn_weight: Tensor, *,
                            im2col_step: int) -> None:
    """Write the gradients of :func:`ms_deform_attn_forward` to the ``grad_`` tensors."""
    grad_heads = promote(grad_output).unflatten(2, value.shape[2:])
    sources, targets = (zip(
        split_levels(values, value_spatial_shapes, value_level_start_index),
        points.unbind(3),
        weights.unbind(3),
        strict=True) for values, points, weights in ((value, sampling_locations, attention_weights),
                                                     (grad_value, grad_sampling_loc,
                                                      grad_attn_weight)))
    for size, source, target in zip(value_spatial_shapes.tolist(), sources, targets, strict=True):
        with torch.enable_grad():
            leaves = [promote(tensor).detach().requires_grad_() for tensor in source]
            out = attend(leaves[0], size, *leaves[1:])
        for tensor, grad in zip(target, torch.autograd.grad(out, leaves, grad_heads), strict=True):
            tensor.copy_(grad)


def split_levels(value: Tensor, sizes: Tensor, starts: Tensor) -> list[Tensor]:
    """Split ``(B, N, h, d)`` into levels ``(B, H * W, h, d)``."""
    lengths = sizes.prod(1).tolist()
    return [
        value.narrow(1, start, length)
        for start, length in zip(starts.tolist(), lengths, strict=True)
    ]


def attend(value: Tensor, size: list[int], points: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums ``(B, Q, h, d)`` of a level ``(B, H * W, h, d)`` at some points."""
    maps = value.permute(0, 2, 3, 1).flatten(0, 1).unflatten(2, size)  # (B * h, d, H, W)
    grid = (2 * points - 1).transpose(1, 2).flatten(0, 1)  # (B * h, Q, P, 2)
    samples = F.grid_sample(maps, grid, align_corners=False)  # (B * h, d, Q, P)
    factors = weights.transpose(1, 2).flatten(0, 1)[:, None]  # (B * h, 1, Q, P)
    sums = (samples * factors).sum(3).unflatten(0, (len(value), -1))  # (B, h, d, Q)
    return sums.permute(0, 3, 1, 2)
