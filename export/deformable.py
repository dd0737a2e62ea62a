"""Deformable attention over levels whose sizes are whole numbers, as graphs of any size need them.

mmcv's and mmdet's classes hold the sizes of levels in a tensor, whose values no graph can use as
shapes. Here they are a list. Nothing else differs.

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
    """mmcv's deformable attention, whose ``spatial_shapes`` are :data:`Sizes`."""

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
        """Queries ``(B, Q, C)`` and values ``(B, N, C)`` to ``(B, Q, C)``; places are 0 to 1.

        ``reference_points`` are ``(B, Q, levels, 2)``, or boxes ``(B, Q, levels, 4)``.
        """
        value = query if value is None else value
        identity = query if identity is None else identity
        query = query if query_pos is None else query + query_pos
        value = self.value_proj(value)
        if key_padding_mask is not None:
            value = value.masked_fill(key_padding_mask[..., None], 0.)
        value = value.unflatten(2, (self.num_heads, -1))
        each = (self.num_heads, self.num_levels, self.num_points)
        offsets = self.sampling_offsets(query).unflatten(2, (*each, 2))
        weights = self.attention_weights(query).unflatten(2, (self.num_heads, -1))
        weights = weights.softmax(-1).unflatten(3, each[1:])
        assert reference_points is not None  # as every caller has them
        places = reference_points[:, :, None, :, None]
        if reference_points.shape[-1] == 2:
            extent = torch.stack([
                torch.stack([like(value, w), like(value, h)]) for h, w in spatial_shapes
            ])  # (levels, 2)
            places = places + offsets / extent[:, None]
        else:
            places = places[..., :2] + offsets / self.num_points * places[..., 2:] * 0.5
        found = multi_scale_deformable_attn_pytorch(value, spatial_shapes, places, weights)
        return self.dropout(self.output_proj(found)) + identity


def like(tensor: Tensor, number: int) -> Tensor:
    """A number that may be symbolic, as a tensor without axes."""
    return torch.full((), 1., dtype=tensor.dtype) * number


class ExportedPixelDecoder(MSDeformAttnPixelDecoder):
    """mmdet's pixel decoder of Mask2Former."""

    def forward(self, feats: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Maps ``(B, C, h, w)``, the finest first, to that of masks and those of the encoder."""
        num = self.num_encoder_levels
        coarse = list(feats[::-1][:num])  # the coarsest first
        sizes = [feat.shape[2:] for feat in coarse]
        projected, positions = [], []
        for feat, project, level in zip(
                coarse, self.input_convs, self.level_encoding.weight, strict=True):
            empty = torch.zeros_like(feat[:, 0], dtype=torch.bool)  # nothing is padded
            position = level[:, None, None] + self.postional_encoding(empty)
            projected.append(tokens_of(project(feat)))
            positions.append(tokens_of(position))
        ratios = projected[0].new_ones(feats[0].shape[0], num, 2)
        memory = self.encoder(
            query=torch.cat(projected, 1),
            query_pos=torch.cat(positions, 1),
            key_padding_mask=None,
            spatial_shapes=sizes,
            level_start_index=None,
            valid_ratios=ratios,
            reference_points=reference_points(sizes, ratios))
        outs = [
            maps_of(part, size)
            for part, size in zip(memory.split([h * w for h, w in sizes], 1), sizes, strict=True)
        ]
        for feat, lateral, output in reversed(
                list(zip(feats, self.lateral_convs, self.output_convs, strict=False))):
            x = lateral(feat)
            above = F.interpolate(outs[-1], x.shape[2:], mode='bilinear', align_corners=False)
            outs.append(output(x + above))
        return self.mask_feature(outs[-1]), outs[:self.num_outs]


def tokens_of(x: Tensor) -> Tensor:
    """Maps ``(B, C, h, w)`` as tokens ``(B, h * w, C)``."""
    return x.flatten(2).transpose(1, 2)


def maps_of(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Tokens ``(B, h * w, C)`` as maps ``(B, C, h, w)``."""
    return x.transpose(1, 2).unflatten(2, size)


def centres(sizes: Sizes, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The centres of the pixels of each level, ``(1, h * w, 2)``: x and y in its pixels."""
    found = []
    for height, width in sizes:
        x, y = (torch.arange(length, dtype=dtype) + 0.5 for length in (width, height))
        grid = torch.stack((x.expand(height, -1), y[:, None].expand(-1, width)), -1)
        found.append(grid.flatten(0, 1)[None])
    return found


def reference_points(sizes: Sizes, valid_ratios: Tensor) -> Tensor:
    """Where each pixel looks, as shares of every level, ``(B, N, levels, 2)``.

    Args:
        sizes: Of the levels.
        valid_ratios: Of each level, the share that is not padded along x and y, ``(B, levels, 2)``.
    """
    places = []
    for level, grid in enumerate(centres(sizes)):
        height, width = sizes[level]
        extent = torch.stack([like(grid, width), like(grid, height)])
        places.append(grid / (valid_ratios[:, level, None] * extent))
    return torch.cat(places, 1)[:, :, None] * valid_ratios[:, None]


#: what takes the place of mmcv's and mmdet's classes in graphs of any size
SIZES_AS_NUMBERS = {
    MultiScaleDeformableAttention: ExportedAttention,
    MSDeformAttnPixelDecoder: ExportedPixelDecoder,
}


def with_sizes_as_numbers(model: nn.Module) -> nn.Module:
    """Return a copy of a model, with the same tensors, whose deformable attention takes sizes."""
    return copy_with_subclasses(model, SIZES_AS_NUMBERS)
