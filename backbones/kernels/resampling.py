"""Values of one grid on another: bicubic and antialiased, as two products with matrices.

Shapes: ``B`` images, ``h, w`` a grid of tokens, ``N = h w``, ``C`` width.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.nn import functional as F

Grid = tuple[int, int]
DOUBLE = ('cpu', 'cuda', 'meta')  # devices that have float64


@dataclass(frozen=True, eq=False)  # tensors have no truth value
class Resampling:
    """What takes tokens from one grid to another."""
    old: Grid
    new: Grid
    rows: Tensor  # (new h, old h)
    columns: Tensor  # (new w, old w)

    @classmethod
    def between(cls, old: Grid, new: Grid, like: Tensor) -> Resampling:
        """From one grid to another, for tokens like these."""
        matrices = (resampling_matrix(*sides, like) for sides in zip(old, new, strict=True))
        return cls(old, new, *matrices)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens ``(B, h w, C)`` on the other grid, first along their rows, then their columns.

        Neither step needs more memory than its result.
        """
        if not torch.compiler.is_exporting() and self.old == self.new:
            return tokens
        (old_h, old_w), (new_h, new_w) = self.old, self.new
        batch, _, channels = tokens.shape
        x = tokens.reshape(batch * old_h, old_w, channels)
        x = self.columns.to(x.dtype) @ x  # (B h, w', C)
        x = x.view(batch, old_h, new_w * channels)
        x = self.rows.to(x.dtype) @ x  # (B, h', w' C)
        return x.view(batch, new_h * new_w, channels)


def resampling_matrix(old: int, new: int, like: Tensor) -> Tensor:
    """``(new, old)``: resamples a line of ``old`` values; bicubic, antialiased, rows sum to 1.

    It is computed in float64, on the CPU for devices that have none, and at least float32. Sizes
    of an export are not known yet: the matrix is computed from them in the graph.
    """
    if torch.compiler.is_exporting():
        return matrix_from_sizes(old, new, like)
    device = like.device if like.device.type in DOUBLE else 'cpu'
    lines = torch.eye(old, dtype=torch.float64, device=device)[None, None]
    matrix = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
    matrix = matrix / matrix.sum(dim=1, keepdim=True)
    return matrix.to(torch.promote_types(like.dtype, torch.float32)).to(like.device)


def matrix_from_sizes(old: int, new: int, like: Tensor) -> Tensor:
    """:func:`resampling_matrix` by operators that every runtime has, without a branch.

    Keys' cubic kernel with a = -1/2, as wide as a new value's share of the line if that is wider
    than an old value. Differences of places are whole numbers, hence exact.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    olds, news = (2 * torch.arange(size, device=like.device) + 1 for size in (old, new))
    places = (olds * new - news[:, None] * old).abs().to(dtype) / (2 * torch.sym_max(old, new))
    near = ((1.5 * places - 2.5) * places) * places + 1
    far = ((2.5 - 0.5 * places) * places - 4) * places + 2
    weights = torch.where(places < 1, near, torch.where(places < 2, far, torch.zeros_like(far)))
    return weights / weights.sum(dim=1, keepdim=True)


def resample_positions(positions: Tensor,
                       old_grid: Grid,
                       new_grid: Grid,
                       num_prefix_tokens: int = 0) -> Tensor:
    """Learned positions ``(1, P + h w, C)`` on another grid; bicubic, antialiased.

    Args:
        positions: Those of ``P`` prefix tokens, which stay, and of a grid.
        old_grid: That grid.
        new_grid: The other one.
        num_prefix_tokens: ``P``.
    """
    if not torch.compiler.is_exporting():
        return resample_abs_pos_embed(
            positions, list(new_grid), list(old_grid), num_prefix_tokens=num_prefix_tokens)
    prefix, of_grid = positions[:, :num_prefix_tokens], positions[:, num_prefix_tokens:]
    resampled = Resampling.between(old_grid, new_grid, positions)(of_grid)
    return torch.cat((prefix, resampled), dim=1) if num_prefix_tokens else resampled
