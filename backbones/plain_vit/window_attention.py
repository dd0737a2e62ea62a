"""Attention within windows of a grid of tokens.

Shapes: ``B`` images, ``P`` prefix tokens, ``N = h w`` tokens of the grid, ``d`` channels of a head.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels.devices import should_use_cpu_forms

Grid = tuple[int, int]


class Heads(NamedTuple):
    """Queries, keys and values, each ``(B, heads, tokens, d)``."""
    query: Tensor
    key: Tensor
    value: Tensor


@torch.compiler.disable  # every number of windows would be compiled
def attend_in_windows(heads: Heads, grid: Grid, window_size: int, dropout: float = 0.) -> Tensor:
    """Attend within windows: tokens see their window and prefix tokens, which see all tokens.

    Heads are ``(B, heads, P + N, d)``, prefix tokens first. Windows begin at the top left; those at
    the bottom and right may hold fewer tokens. ViTDet (arXiv 2203.16527, section 3) has no prefix
    tokens, and pads the last windows with zeros. On a CPU without gradients, rows of windows are
    computed in turn, to save memory.
    """
    if torch.compiler.is_exporting():
        return attend_in_padded_windows(heads, grid, window_size)
    prefix = heads.query.shape[2] - grid[0] * grid[1]
    key, value = heads.key[:, :, :prefix], heads.value[:, :, :prefix]
    in_grid = [part[:, :, prefix:].unflatten(2, grid) for part in heads]
    at_once = torch.is_grad_enabled() or not should_use_cpu_forms(heads.query)
    rows = []
    for row in split_side(grid[0], window_size, at_once=at_once):
        columns = []
        for column in split_side(grid[1], window_size, at_once=True):
            region = [part[:, :, row, column] for part in in_grid]
            height, width = region[0].shape[2:4]
            sides = min(window_size, height), min(window_size, width)
            windows = Heads(*(split(part, sides) for part in region))
            if prefix:
                count = height // sides[0] * (width // sides[1])
                windows = add_prefix_tokens(windows, key, value, count)
            out = F.scaled_dot_product_attention(*windows, dropout_p=dropout)
            columns.append(join(out, sides, (height, width)))
        rows.append(_concatenate(columns, dim=3))
    out = _concatenate(rows, dim=2).flatten(2, 3)
    if not prefix:
        return out
    prefix_out = F.scaled_dot_product_attention(
        heads.query[:, :, :prefix], heads.key, heads.value, dropout_p=dropout)
    return torch.cat((prefix_out, out), dim=2)


def attend_in_padded_windows(heads: Heads, grid: Grid, window_size: int) -> Tensor:
    """Compute :func:`attend_in_windows` for exports, where sizes are symbolic.

    The grid is padded to whole windows; the padding is masked, and cut off afterwards.
    """
    prefix = heads.query.shape[2] - grid[0] * grid[1]
    # No negative quotients: ONNX rounds them to zero.
    counts = [(side + window_size - 1) // window_size for side in grid]
    padding = (0, 0, 0, counts[1] * window_size - grid[1], 0, counts[0] * window_size - grid[0])

    def to_windows(x: Tensor) -> Tensor:
        """Split ``(B, heads, h, w, d)`` into ``(B windows, heads, tokens of a window, d)``."""
        x = x.reshape(*x.shape[:2], counts[0], window_size, counts[1], window_size, x.shape[-1])
        x = x.permute(0, 2, 4, 1, 3, 5, 6)
        batch = x.shape[0] * counts[0] * counts[1]
        return x.reshape(batch, x.shape[3], window_size**2, x.shape[-1])

    in_grid = (part[:, :, prefix:].unflatten(2, grid) for part in heads)
    windows = Heads(*(to_windows(F.pad(part, padding)) for part in in_grid))
    masked = torch.finfo(heads.query.dtype).min
    mask = F.pad(heads.query.new_zeros(1, 1, *grid, 1), padding, value=masked)
    mask = F.pad(to_windows(mask).mT, (prefix, 0))  # (windows, 1, 1, tokens)
    if prefix:
        key, value = (part[:, :, :prefix] for part in heads[1:])
        windows = add_prefix_tokens(windows, key, value, counts[0] * counts[1])
    batch, num_heads, _, width = heads.value.shape
    out = F.scaled_dot_product_attention(
        *windows, attn_mask=mask.expand(batch, -1, -1, -1, -1).flatten(0, 1))
    out = out.reshape(batch, *counts, num_heads, window_size, window_size, width)
    out = out.permute(0, 3, 1, 4, 2, 5, 6)
    out = out.reshape(batch, num_heads, counts[0] * window_size, counts[1] * window_size, width)
    out = out[:, :, :grid[0], :grid[1]].flatten(2, 3)
    if not prefix:
        return out
    prefix_out = F.scaled_dot_product_attention(heads.query[:, :, :prefix], heads.key, heads.value)
    return torch.cat((prefix_out, out), dim=2)


def round_up(grid: Grid, multiple: int) -> Grid:
    """Round the sides of a grid up to a multiple."""
    rows, columns = ((side + multiple - 1) // multiple * multiple for side in grid)
    return rows, columns


def pad_grid(x: Tensor, grid: Grid, multiple: int) -> tuple[Tensor, Grid]:
    """Pad tokens ``(..., h w, C)`` with zeros to sides of a multiple; return their grid, too."""
    rows, columns = round_up(grid, multiple)
    x = F.pad(x.unflatten(-2, grid), (0, 0, 0, columns - grid[1], 0, rows - grid[0]))
    return x.flatten(-3, -2), (rows, columns)


def split_side(size: int, side: int, *, at_once: bool) -> list[slice]:
    """Return slices of a side of the grid: whole windows, at once or separately, and the rest."""
    whole = size - size % side
    step = max(whole, 1) if at_once else side
    parts = [slice(start, start + step) for start in range(0, whole, step)]
    return parts if whole == size else [*parts, slice(whole, size)]


def add_prefix_tokens(windows: Heads, key: Tensor, value: Tensor, count: int) -> Heads:
    """Prepend prefix tokens to keys and values of windows ``(B count, heads, tokens, d)``."""
    key, value = (
        part[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1) for part in (key, value))
    return Heads(windows.query, torch.cat((key, windows.key), dim=2),
                 torch.cat((value, windows.value), dim=2))


def split(x: Tensor, sides: Grid) -> Tensor:
    """Split ``(B, heads, h, w, d)`` into ``(B windows, heads, tokens of a window, d)``."""
    x = x.unflatten(3, (-1, sides[1])).unflatten(2, (-1, sides[0]))
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)


def join(windows: Tensor, sides: Grid, size: Grid) -> Tensor:
    """Invert :func:`split`; memory is ``(B, h, w, heads, d)``, whose heads merge without a copy."""
    x = windows.unflatten(0, (-1, size[0] // sides[0], size[1] // sides[1])).unflatten(4, sides)
    x = x.permute(0, 1, 4, 2, 5, 3, 6).flatten(3, 4).flatten(1, 2)
    return x.permute(0, 3, 1, 2, 4)


def _concatenate(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate tensors; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
