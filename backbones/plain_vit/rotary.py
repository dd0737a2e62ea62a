"""Rotary positions of a grid of tokens, also where its size is not known yet."""
from __future__ import annotations

import torch
from timm.layers import RotaryEmbeddingDinoV3
from torch import Tensor, nn

from ..kernels.private_torch import rotary_positions_of_places
from .window_attention import Grid


def rotary_positions(rope: nn.Module, grid: Grid) -> Tensor:
    """timm's positions of a grid, ``(N, 2 d)``, or ``(blocks, heads, N, 2 d)``.

    timm's DINOv3 turns sizes into floats, which would write the example's size into an export.
    """
    if not (torch.compiler.is_exporting() and isinstance(rope, RotaryEmbeddingDinoV3)):
        return rope.get_embed(shape=list(grid))
    sides = tuple(reversed(grid)) if rope.grid_indexing == 'xy' else grid
    bound = dict(max=torch.sym_max, min=torch.sym_min).get(rope.normalize_coords)
    whole = sides if bound is None else (bound(*sides), ) * 2
    lines = [(torch.arange(side, dtype=torch.float32) + 0.5 + rope.grid_offset) / length
             for side, length in zip(sides, whole, strict=True)]  # yapf: disable
    if rope.grid_indexing == 'xy':
        lines.reverse()
    places = torch.stack(torch.meshgrid(*lines, indexing='ij'), dim=-1)
    if rope.grid_indexing == 'xy':
        places = places.flip(-1)
    sines, cosines = rotary_positions_of_places(rope, 2 * places.flatten(0, 1) - 1)
    return torch.cat((sines, cosines), dim=-1)
