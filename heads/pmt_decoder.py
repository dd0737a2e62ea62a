"""Decoder of PMT, the Plain Mask Transformer, behind any plain backbone (arXiv 2603.25398).

Shapes: ``B`` images, ``Q`` queries, ``P`` prefix tokens (class, registers), ``N = h w`` tokens of
the grid, ``C`` width.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from mmcv.cnn import build_norm_layer
from timm.layers import RotaryEmbeddingDinoV3
from timm.models.eva import EvaBlock
from torch import Tensor, nn

from colonnade.backbones.plain_vit.blocks import PlainBlock, embed_grid
from colonnade.common.errors import UserError

#: a feature map ``(B, C, h, w)``, or a pair of it and prefix tokens ``(B, P, C)``
Feature: TypeAlias = Tensor | tuple[Tensor, Tensor]
Grid: TypeAlias = tuple[int, int]


class QueryBlock(PlainBlock):
    """Pre-norm block with rotary positions of the patches and a narrow MLP, as DINOv3's blocks.

    Args:
        dim: Width C.
        num_heads: Number of attention heads.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        block = EvaBlock(
            dim,
            num_heads,
            qkv_fused=False,
            mlp_ratio=1.,
            rotate_half=True,
            init_values=1.,
            norm_layer=partial(nn.LayerNorm, eps=1e-5))
        super().__init__(block, 0)


class PlainMaskDecoder(nn.Module):
    """Projections that join feature maps of one resolution, and blocks for them and queries.

    Args:
        dim: Width C.
        num_features: Number of feature maps.
        num_blocks: Number of blocks.
        num_heads: Number of attention heads. Defaults to heads of 64 channels.
        norm_cfg: Batch norm of each feature map. Defaults to ``type='BN'``.

    Raises:
        ValueError: If the width is not a multiple of four times the number of heads.
    """

    def __init__(self,
                 dim: int,
                 *,
                 num_features: int = 4,
                 num_blocks: int = 6,
                 num_heads: int | None = None,
                 norm_cfg: dict[str, Any] | None = None) -> None:
        super().__init__()
        if num_heads is None:
            num_heads = max(dim // 64, 1)
        if num_heads < 1 or dim % (4 * num_heads):
            raise UserError(
                'in_channels must be a multiple of 4 * num_heads, for rotary embeddings, '
                f'got {dim} and {num_heads} heads')
        norm_cfg = norm_cfg or dict(type='BN')
        self.bn = nn.ModuleList(build_norm_layer(norm_cfg, dim)[1] for _ in range(num_features))
        self.lateral_projections = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim // 2), nn.GELU(), nn.Linear(dim // 2, dim))
            for _ in range(num_features))
        self.scalers = nn.ParameterList(torch.ones(dim) for _ in range(num_features))
        # timm scales the coordinates of training images by a random factor, as the authors do
        self.rope = RotaryEmbeddingDinoV3(dim // num_heads, rotate_half=True, rescale_coords=2.)
        self.blocks = nn.ModuleList(QueryBlock(dim, num_heads) for _ in range(num_blocks))
        self.decoder_norm = nn.LayerNorm(dim, eps=1e-5)
        self.register_load_state_dict_post_hook(_fill_periods)

    def join(self, features: Sequence[Feature]) -> tuple[Tensor, Grid]:
        """Join feature maps, shallow to deep, to tokens ``(B, P + N, C)``, and return their grid.

        Raises:
            ValueError: If their number is not ``num_features``.
        """
        if len(features) != len(self.bn):
            raise UserError(f'expected {len(self.bn)} feature maps (num_features), got '
                            f'{len(features)}: set num_features, or out_indices of the backbone')
        joined: Tensor | float = 0.
        for feature, norm, project, scale in zip(
                features, self.bn, self.lateral_projections, self.scalers, strict=True):
            map_, prefix = feature if isinstance(feature, tuple) else (feature, None)
            x = map_.flatten(2)  # (B, C, N)
            if prefix is not None:
                x = torch.cat((prefix.mT, x), dim=2)
            x = norm(x[..., None])[..., 0].mT  # norms of maps also take one column
            joined = joined + (x + project(x)) * scale
        assert isinstance(joined, Tensor)
        return joined, (map_.shape[2], map_.shape[3])

    def embed_positions(self, grid: Grid) -> Tensor:
        """Compute rotary positions of the patches; in training, at a random scale."""
        return embed_grid(self.rope, grid)


def _fill_periods(decoder: PlainMaskDecoder, _: Any) -> None:
    """Compute the periods of rotary positions, if the decoder was built on the meta device."""
    device = decoder.decoder_norm.weight.device
    if decoder.rope.periods.is_meta and device.type != 'meta':
        decoder.rope.periods = torch.empty_like(decoder.rope.periods, device=device)
        decoder.rope.init_non_persistent_buffers()
