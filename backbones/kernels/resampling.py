"""Resampling of grids of tokens, as two matmuls.

Shapes: ``B`` images, ``h, w`` a grid of tokens, ``N = h w``, ``C`` width.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.nn import functional as F

Grid = tuple[int, int]
FLOAT64_DEVICES = ('cpu', 'cuda', 'meta')
#: how learned positions are resized: bicubic and antialiased as in timm; or without antialiasing,
#: where DINOv2's code resizes to a tenth of a token more than the grid has
RESIZE_MODES = ('timm', 'bicubic', 'bilinear', 'dinov2')


@dataclass(frozen=True, eq=False)  # tensors have no truth value
class Resampling:
    """Linear map of tokens from one grid to another."""
    old: Grid
    new: Grid
    rows: Tensor  # (new h, old h)
    columns: Tensor  # (new w, old w)

    @classmethod
    def between(cls, old: Grid, new: Grid, like: Tensor, mode: str = 'timm') -> Resampling:
        """Build the map between two grids, for the device and type of ``like``."""
        matrices = (
            build_resampling_matrix(*sides, like) if mode == 'timm' else build_tap_matrix(
                *sides, like, mode) for sides in zip(old, new, strict=True))
        return cls(old, new, *matrices)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Resample tokens ``(B, h w, C)``; neither step needs more memory than its result."""
        if not torch.compiler.is_exporting() and self.old == self.new:
            return tokens
        (old_h, old_w), (new_h, new_w) = self.old, self.new
        batch, _, channels = tokens.shape
        x = tokens.reshape(batch * old_h, old_w, channels)
        x = self.columns.to(x.dtype) @ x  # (B h, w', C)
        x = x.view(batch, old_h, new_w * channels)
        x = self.rows.to(x.dtype) @ x  # (B, h', w' C)
        return x.view(batch, new_h * new_w, channels)


def build_resampling_matrix(old: int, new: int, like: Tensor) -> Tensor:
    """Build the matrix ``(new, old)`` that resamples a line; its rows sum to 1.

    It is computed in float64, on the CPU for devices without it. In exports, where sizes are
    symbolic, it is computed in the graph.
    """
    if torch.compiler.is_exporting():
        return build_matrix_from_sizes(old, new, like)
    device = like.device if like.device.type in FLOAT64_DEVICES else 'cpu'
    lines = torch.eye(old, dtype=torch.float64, device=device)[None, None]
    matrix = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
    matrix = matrix / matrix.sum(dim=1, keepdim=True)
    return matrix.to(torch.promote_types(like.dtype, torch.float32)).to(like.device)


def build_matrix_from_sizes(old: int, new: int, like: Tensor) -> Tensor:
    """Build a :func:`build_resampling_matrix` of operators of every runtime, without branches.

    The kernel is Keys' cubic one with a = -1/2, widened for smaller grids. Differences of positions
    are integers, hence exact.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    olds, news = (2 * torch.arange(size, device=like.device) + 1 for size in (old, new))
    distances = (olds * new - news[:, None] * old).abs().to(dtype) / (2 * torch.sym_max(old, new))
    near = ((1.5 * distances - 2.5) * distances) * distances + 1
    far = ((2.5 - 0.5 * distances) * distances - 4) * distances + 2
    weights = torch.where(distances < 1, near, torch.where(distances < 2, far,
                                                           torch.zeros_like(far)))
    return weights / weights.sum(dim=1, keepdim=True)


def build_tap_matrix(old: int, new: int, like: Tensor, mode: str) -> Tensor:
    """Build the matrix ``(new, old)`` of a resampling without antialiasing, see RESIZE_MODES.

    Each row has the weights of two pixels, or of four of Keys' cubic kernel with a = -3/4; pixels
    beyond the border equal those at it, as in :func:`torch.nn.functional.interpolate`.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    olds, news = (torch.arange(size, device=like.device) for size in (old, new))
    centers = (news.to(dtype) + 0.5) * (old / (new + (0.1 if mode == 'dinov2' else 0))) - 0.5
    first = centers.floor()
    matrix = torch.zeros(new, old, dtype=dtype, device=like.device)
    for tap in (0, 1) if mode == 'bilinear' else (-1, 0, 1, 2):
        distance = (centers - (first + tap)).abs()
        if mode == 'bilinear':
            weight = 1 - distance
        elif tap in (0, 1):
            weight = (1.25 * distance - 2.25) * distance * distance + 1
        else:
            weight = ((3.75 - 0.75 * distance) * distance - 6) * distance + 3
        place = (first + tap).clamp(0, old - 1)
        matrix = matrix + weight[:, None] * (place[:, None] == olds)
    return matrix


def resample_positions(positions: Tensor,
                       old_grid: Grid,
                       new_grid: Grid,
                       num_prefix_tokens: int = 0,
                       mode: str = 'timm') -> Tensor:
    """Resample learned positions ``(1, P + h w, C)``; those of ``P`` prefix tokens stay."""
    if mode == 'timm' and not torch.compiler.is_exporting():
        return resample_abs_pos_embed(
            positions, list(new_grid), list(old_grid), num_prefix_tokens=num_prefix_tokens)
    prefix, grid = positions[:, :num_prefix_tokens], positions[:, num_prefix_tokens:]
    resampled = Resampling.between(old_grid, new_grid, positions, mode)(grid)
    return torch.cat((prefix, resampled), dim=1) if num_prefix_tokens else resampled
