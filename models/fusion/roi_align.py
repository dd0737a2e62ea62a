"""RoIAlign of channels-last maps as weighted sums of pixels, for CPUs without gradients.

A channels-last map is a table of pixels, and a cell of an RoI a bag of them, which torch's
embedding bags sum. A pixel's weight is that of its row times that of its column, and samples on
the same pixel share it.

Shapes: ``B`` images, ``C`` channels, ``H, W`` the map; ``k`` RoIs of ``P`` cells along an axis,
``S`` samples and ``T`` pixels of a cell along an axis.

Formula: Mask R-CNN (arXiv 1703.06870), section 3, as ``torchvision.ops.roi_align`` computes it.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from mmcv.ops import RoIAlign
from torch import Tensor
from torch.nn import functional as F

from colonnade.backbones.kernels.devices import should_use_cpu_forms

PIXELS = 1 << 18  # pixels of bags listed at a time, so that they stay in the cache
DTYPES = (torch.float32, torch.bfloat16, torch.float64)  # types that embedding bags sum
REACH = 8  # multiple of the map's size; RoIs beyond it have too many samples


class Cells(NamedTuple):
    """Cells of RoIs along one axis of a map."""
    first: Tensor  # (k, P), first pixel of each cell
    count: Tensor  # (k,), number of pixels of each cell
    weights: Tensor  # (k, P, T), weights of the pixels, 0 after the last


class BagRoIAlign(RoIAlign):
    """mmcv's RoIAlign by :func:`roi_align` if it can be used, in the default memory format."""

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        """Align RoIs ``(k, 5)`` of maps ``(B, C, H, W)`` to ``(k, C, h, w)``."""
        if not can_use_bags(self, input, rois):
            return super().forward(input, rois)
        return roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio,
                         self.aligned).contiguous()


def can_use_bags(layer: RoIAlign, feature: Tensor, rois: Tensor) -> bool:
    """Return True if :func:`roi_align` can be used for maps and RoIs."""
    if (not should_use_cpu_forms(feature) or feature.dtype not in DTYPES or not feature.numel()
            or layer.pool_mode != 'avg' or torch.compiler.is_compiling()
            or torch.is_grad_enabled() and (feature.requires_grad or rois.requires_grad)):
        return False
    farthest = rois[:, 1:].abs().amax() if len(rois) else 0
    return bool(farthest * layer.spatial_scale <= REACH * max(feature.shape[2:]))  # not if NaN


def roi_align(feature: Tensor,
              rois: Tensor,
              output_size: tuple[int, int],
              spatial_scale: float = 1.,
              sampling_ratio: int = 0,
              aligned: bool = True) -> Tensor:
    """Compute average RoIAlign as mmcv, ``(k, C, rows, columns)`` in channels last.

    Maps ``(B, C, H, W)`` are copied unless they are channels last. RoIs ``(k, 5)`` must be finite.
    """
    out = feature.new_empty(len(rois), *output_size, feature.shape[1])
    align_into(out, torch.arange(len(rois)), feature, rois, spatial_scale, sampling_ratio, aligned)
    return out.permute(0, 3, 1, 2)


def align_into(out: Tensor,
               indices: Tensor,
               feature: Tensor,
               rois: Tensor,
               spatial_scale: float = 1.,
               sampling_ratio: int = 0,
               aligned: bool = True) -> None:
    """Write :func:`roi_align` of RoIs to rows ``indices`` ``(k,)`` of ``out`` ``(n, h, w, C)``."""
    _, channels, height, width = feature.shape
    table = feature.permute(0, 2, 3, 1).reshape(-1, channels)
    exact = torch.promote_types(feature.dtype, torch.float32)
    edges = rois[:, 1:].to(exact) * spatial_scale - (0.5 if aligned else 0.)
    left, top, right, bottom = edges.unbind(1)
    rows = compute_cells(top, bottom, out.shape[1], height, sampling_ratio, aligned)
    columns = compute_cells(left, right, out.shape[2], width, sampling_ratio, aligned)
    starts = rois[:, 0].long() * (height * width)
    for block in iter_blocks(rows.count, columns.count, out.shape[1] * out.shape[2]):
        down, across = (Cells(*(part[block] for part in axis)) for axis in (rows, columns))
        row_starts = starts[block, None, None] + _get_pixels(down) * width  # (k, P, T)
        bags = row_starts[:, :, None, :, None] + _get_pixels(across)[:, None, :, None, :]
        weights = down.weights[..., :int(down.count[0])][:, :, None, :, None] * across.weights[
            ..., :int(across.count[0])][:, None, :, None, :]
        sums = F.embedding_bag(
            bags.flatten(3).flatten(0, 2),
            table,
            mode='sum',
            per_sample_weights=weights.flatten(3).flatten(0, 2).to(table.dtype))
        out.index_copy_(0, indices[block], sums.view(-1, *out.shape[1:]))


def compute_cells(low: Tensor, high: Tensor, num_cells: int, size: int, sampling_ratio: int,
                  aligned: bool) -> Cells:
    """Compute cells of RoIs from ``low`` to ``high`` ``(k,)`` on an axis of ``size`` pixels."""
    length = high - low if aligned else (high - low).clamp_min(1)
    step = (length / num_cells)[:, None, None]
    samples = torch.full_like(step, sampling_ratio) if sampling_ratio > 0 else \
        step.ceil().clamp_min(0)
    max_samples = int(samples.amax()) if len(low) else 0
    sample = torch.arange(max(max_samples, 1), dtype=step.dtype).expand(len(low), 1, -1)
    cell = torch.arange(num_cells, dtype=step.dtype)[:, None]
    inner = sample.minimum((samples - 1).clamp_min(0))  # extra samples repeat the last one
    at = low[:, None, None] + cell * step + (inner + 0.5) * step / samples.clamp_min(1)
    weight = ((sample < samples) & (at >= -1) & (at <= size)) / samples.clamp_min(1)  # (k, P, S)
    at = at.clamp(0, size - 1)
    before = at.floor()
    count = (before.amax(2) - before.amin(2)).amax(1).long().add_(2).clamp_max_(size)
    first = before.amin(2).long().minimum(size - count[:, None])
    index = before.long() - first[..., None]
    widest = int(count.max()) if len(low) else 1
    weights = weight.new_zeros(len(low), num_cells, widest)
    fraction = at - before
    weights.scatter_add_(2, index, weight * (1 - fraction))
    weights.scatter_add_(2, (index + 1).clamp_max_(widest - 1), weight * fraction)
    return Cells(first, count, weights)


def iter_blocks(rows: Tensor, columns: Tensor, num_cells: int) -> Iterator[Tensor]:
    """Yield indices of RoIs with equal numbers of pixels per cell, some at a time."""
    sizes, order = (rows << 32 | columns).sort(stable=True)
    _, counts = sizes.unique_consecutive(return_counts=True)
    for group in order.split(counts.tolist()):
        bag = int(rows[group[0]] * columns[group[0]])
        yield from group.split(max(1, PIXELS // (num_cells * bag)))


def _get_pixels(axis: Cells) -> Tensor:
    """Return the pixels ``(k, P, T)`` of cells that have equally many."""
    return axis.first[..., None] + torch.arange(int(axis.count[0]))
