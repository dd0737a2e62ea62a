"""RoIAlign of channels-last maps as weighted sums of their pixels, for CPUs without gradients.

A map in channels-last order is a table of pixels, and a cell of a region is a bag of them, which
torch's embedding bags add up. A pixel's weight is that of its row times that of its column, and
samples that fall on the same pixel share it.

Shapes: ``B`` images, ``C`` channels, ``H, W`` the map; ``k`` regions of ``P`` cells along an axis,
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

PIXELS = 1 << 18  # of bags that are listed at a time: they stay in the processor's cache
DTYPES = (torch.float32, torch.bfloat16, torch.float64)  # that embedding bags add up
REACH = 8  # sizes of a map: regions beyond have too many samples to list


class Cells(NamedTuple):
    """Where the cells of regions lie along one axis of a map.

    Attributes:
        first: The first pixel of each cell, ``(k, P)``.
        count: How many pixels each cell of a region has, ``(k,)``.
        weights: Of these pixels, ``(k, P, T)``; 0 behind the last.
    """
    first: Tensor
    count: Tensor
    weights: Tensor


class BagRoIAlign(RoIAlign):
    """mmcv's RoIAlign, by :func:`roi_align` where that can be used; its order is the default."""

    def forward(self, input: Tensor, rois: Tensor) -> Tensor:
        """Maps ``(B, C, H, W)`` and regions ``(k, 5)`` to ``(k, C, h, w)``."""
        if not suits_bags(self, input, rois):
            return super().forward(input, rois)
        return roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio,
                         self.aligned).contiguous()


def suits_bags(layer: RoIAlign, feature: Tensor, rois: Tensor) -> bool:
    """Whether :func:`roi_align` can be used for these maps and regions."""
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
    """RoIAlign that averages, as ``mmcv.ops.roi_align`` and torchvision's.

    Args:
        feature: Maps ``(B, C, H, W)``; in channels-last order they are not copied.
        rois: Index of the image, left, top, right, bottom: ``(k, 5)``, finite.
        output_size: Rows and columns of cells.
        spatial_scale: Factor from the coordinates of regions to those of maps.
        sampling_ratio: Samples of a cell along each axis; 0 takes about one a pixel.
        aligned: Whether coordinate 0 is the edge of the first pixel, not its centre.

    Returns:
        ``(k, C, rows, columns)`` in channels-last order.
    """
    out = feature.new_empty(len(rois), *output_size, feature.shape[1])
    align_into(out, torch.arange(len(rois)), feature, rois, spatial_scale, sampling_ratio, aligned)
    return out.permute(0, 3, 1, 2)


def align_into(out: Tensor,
               places: Tensor,
               feature: Tensor,
               rois: Tensor,
               spatial_scale: float = 1.,
               sampling_ratio: int = 0,
               aligned: bool = True) -> None:
    """Write :func:`roi_align` of regions to their ``places`` ``(k,)`` in ``(n, h, w, C)``."""
    _, channels, height, width = feature.shape
    table = feature.permute(0, 2, 3, 1).reshape(-1, channels)
    exact = torch.promote_types(feature.dtype, torch.float32)
    edges = rois[:, 1:].to(exact) * spatial_scale - (0.5 if aligned else 0.)
    left, top, right, bottom = edges.unbind(1)
    rows = cells(top, bottom, out.shape[1], height, sampling_ratio, aligned)
    columns = cells(left, right, out.shape[2], width, sampling_ratio, aligned)
    starts = rois[:, 0].long() * (height * width)
    for block in blocks(rows.count, columns.count, out.shape[1] * out.shape[2]):
        down, across = (Cells(*(part[block] for part in axis)) for axis in (rows, columns))
        row_starts = starts[block, None, None] + pixels(down) * width  # (k, P, T)
        indices = row_starts[:, :, None, :, None] + pixels(across)[:, None, :, None, :]
        weights = factors(down)[:, :, None, :, None] * factors(across)[:, None, :, None, :]
        sums = F.embedding_bag(
            indices.flatten(3).flatten(0, 2),
            table,
            mode='sum',
            per_sample_weights=weights.flatten(3).flatten(0, 2).to(table.dtype))
        out.index_copy_(0, places[block], sums.view(-1, *out.shape[1:]))


def cells(low: Tensor, high: Tensor, num_cells: int, size: int, sampling_ratio: int,
          aligned: bool) -> Cells:
    """The cells of regions from ``low`` to ``high`` ``(k,)`` along an axis of ``size`` pixels."""
    length = high - low if aligned else (high - low).clamp_min(1)
    step = (length / num_cells)[:, None, None]
    samples = torch.full_like(step, sampling_ratio) if sampling_ratio > 0 else \
        step.ceil().clamp_min(0)
    most = int(samples.amax()) if len(low) else 0
    sample = torch.arange(max(most, 1), dtype=step.dtype).expand(len(low), 1, -1)
    cell = torch.arange(num_cells, dtype=step.dtype)[:, None]
    inner = sample.minimum((samples - 1).clamp_min(0))  # what is too much repeats the last one
    at = low[:, None, None] + cell * step + (inner + 0.5) * step / samples.clamp_min(1)
    weight = ((sample < samples) & (at >= -1) & (at <= size)) / samples.clamp_min(1)  # (k, P, S)
    at = at.clamp(0, size - 1)
    before = at.floor()
    count = (before.amax(2) - before.amin(2)).amax(1).long().add_(2).clamp_max_(size)
    first = before.amin(2).long().minimum(size - count[:, None])
    index = before.long() - first[..., None]
    widest = int(count.max()) if len(low) else 1
    weights = weight.new_zeros(len(low), num_cells, widest)
    behind = at - before
    weights.scatter_add_(2, index, weight * (1 - behind))
    weights.scatter_add_(2, (index + 1).clamp_max_(widest - 1), weight * behind)
    return Cells(first, count, weights)


def blocks(rows: Tensor, columns: Tensor, num_cells: int) -> Iterator[Tensor]:
    """Indices of regions that have as many pixels in each cell, not too many at a time."""
    sizes, order = (rows << 32 | columns).sort(stable=True)
    _, counts = sizes.unique_consecutive(return_counts=True)
    for group in order.split(counts.tolist()):
        bag = int(rows[group[0]] * columns[group[0]])
        yield from group.split(max(1, PIXELS // (num_cells * bag)))


def pixels(axis: Cells) -> Tensor:
    """The pixels ``(k, P, T)`` of cells that have as many."""
    return axis.first[..., None] + torch.arange(int(axis.count[0]))


def factors(axis: Cells) -> Tensor:
    """The weights of :func:`pixels`."""
    return axis.weights[..., :int(axis.count[0])]
