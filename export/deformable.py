"""Deformable attention with integer level sizes, as graphs with dynamic shapes need them.

The classes of mmcv and mmdet store the sizes of levels in a tensor, whose values a graph cannot use
as shapes. Here they are a list.

Shapes: ``B`` images, ``N`` pixels of all levels, ``h, w`` one level, ``Q`` queries.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmcv.ops import MultiScaleDeformableAttention
from mmcv.ops.multi_scale_deform_attn import multi_scale_deformable_attn_pytorch
from mmdet.models.layers import MSDeformAttnPixelDecoder
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.models.replacement import copy_with_subclasses

Sizes = Sequence[tuple[int, int]]  # height and width of each level; symbolic while exporting


class ExportedAttention(MultiScaleDeformableAttention):
    """mmcv's deformable attention with :data:`Sizes` as ``spatial_shapes``."""

    def forward(self,
                query: Tensor,
                key: Tensor | None = None,
                value: Tensor | None = None,
                identity: Tensor | None = None,
                query_pos: Tensor | None = None,
                key_padding_mask: Tensor | None = None,
                reference_points: Tensor | None = None,
                spatial_shapes: Sizes = (),
                level_start_index: Any = None,
                **_: Any) -> Tensor:
        """Attend from queries ``(B, Q, C)`` to values ``(B, N, C)``, and return ``(B, Q, C)``.

        ``reference_points`` are ``(B, Q, levels, 2)`` or boxes ``(B, Q, levels, 4)``, from 0 to 1.
        """
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        value = self.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask[..., None], 0.)
        value = value.unflatten(2, (self.num_heads, -1))
        shape = (self.num_heads, self.num_levels, self.num_points)
        offsets = self.sampling_offsets(query).unflatten(2, (*shape, 2))
        weights = self.attention_weights(query).unflatten(2, (self.num_heads, -1))
        weights = weights.softmax(-1).unflatten(3, shape[1:])
        assert reference_points is not None
        points = reference_points[:, :, None, :, None]
        if reference_points.shape[-1] == 2:
            extent = torch.stack([_to_tensor(value, size) for size in spatial_shapes])
            points = points + offsets / extent[:, None]
        else:
            points = points[..., :2] + offsets / self.num_points * points[..., 2:] * 0.5
        out = multi_scale_deformable_attn_pytorch(value, spatial_shapes, points, weights)
        return self.dropout(self.output_proj(out)) + identity


def _to_tensor(like: Tensor, size: tuple[int, int]) -> Tensor:
    """Return width and height, which may be symbolic, as a tensor ``(2,)``."""
    return torch.stack([torch.full((), 1., dtype=like.dtype) * side for side in size[::-1]])


class ExportedPixelDecoder(MSDeformAttnPixelDecoder):
    """Pixel decoder of Mask2Former in mmdet."""

    def forward(self, feats: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return mask features and encoder outputs for feature maps, finest first."""
        num_levels = self.num_encoder_levels
        coarse = list(feats[::-1][:num_levels])  # coarsest first
        sizes = [feat.shape[2:] for feat in coarse]
        projected, positions = [], []
        for feat, project, level in zip(
                coarse, self.input_convs, self.level_encoding.weight, strict=True):
            no_padding = torch.zeros_like(feat[:, 0], dtype=torch.bool)
            position = level[:, None, None] + self.postional_encoding(no_padding)
            projected.append(flatten_maps(project(feat)))
            positions.append(flatten_maps(position))
        ratios = projected[0].new_ones(feats[0].shape[0], num_levels, 2)
        memory = self.encoder(
            query=torch.cat(projected, 1),
            query_pos=torch.cat(positions, 1),
            key_padding_mask=None,
            spatial_shapes=sizes,
            level_start_index=None,
            valid_ratios=ratios,
            reference_points=compute_reference_points(sizes, ratios))
        outs = split_levels(memory, sizes)
        for feat, lateral, output in reversed(
                list(zip(feats, self.lateral_convs, self.output_convs, strict=False))):
            x = lateral(feat)
            above = F.interpolate(outs[-1], x.shape[2:], mode='bilinear', align_corners=False)
            outs.append(output(x + above))
        return self.mask_feature(outs[-1]), outs[:self.num_outs]


def flatten_maps(x: Tensor) -> Tensor:
    """Return feature maps ``(B, C, h, w)`` as tokens ``(B, h * w, C)``."""
    return x.flatten(2).transpose(1, 2)


def split_levels(x: Tensor, sizes: Sizes) -> list[Tensor]:
    """Return tokens ``(B, N, C)`` of all levels as feature maps ``(B, C, h, w)``."""
    levels = x.split([h * w for h, w in sizes], 1)
    return [
        level.transpose(1, 2).unflatten(2, size) for level, size in zip(levels, sizes, strict=True)
    ]


def compute_pixel_centers(sizes: Sizes) -> list[Tensor]:
    """Return x and y of the pixel centers of each level, in its pixels, ``(1, h * w, 2)``."""
    centers = []
    for height, width in sizes:
        x, y = (torch.arange(length, dtype=torch.float32) + 0.5 for length in (width, height))
        grid = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width)), -1)
        centers.append(grid.flatten(0, 1)[None])
    return centers


def compute_reference_points(sizes: Sizes, valid_ratios: Tensor) -> Tensor:
    """Return the reference point of each pixel on every level, ``(B, N, levels, 2)``.

    Args:
        sizes: Height and width of each level.
        valid_ratios: Fraction of each level without padding, along x and y, ``(B, levels, 2)``.
    """
    points = []
    for level, grid in enumerate(compute_pixel_centers(sizes)):
        extent = valid_ratios[:, level, None] * _to_tensor(grid, sizes[level])
        points.append(grid / extent)
    return torch.cat(points, 1)[:, :, None] * valid_ratios[:, None]


#: class of mmcv or mmdet -> its replacement in graphs
REPLACEMENTS = {
    MultiScaleDeformableAttention: ExportedAttention,
    MSDeformAttnPixelDecoder: ExportedPixelDecoder,
}


def use_integer_sizes(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with shared tensors, whose deformable attention takes sizes."""
    return copy_with_subclasses(model, REPLACEMENTS)
