"""Relative positions: decomposed (MViTv2, arXiv 2112.01526, section 4.1) as in ViTDet, and tables.

The attention of query ``q`` at ``(i, j)`` to the key ``k`` at ``(m, n)`` is the softmax of
``q k / sqrt(d) + q H[i - m] + q W[j - n]``, with tables ``H`` and ``W`` of ``(2 side - 1, d)``.

In BEiT (arXiv 2106.08254), it is that of ``q k / sqrt(d) + T[i - m, j - n]``, with a table ``T`` of
``(2 side - 1)**2`` biases of each head. Three more biases are for queries of the class token, for
its keys, and for both.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ..kernels.devices import should_use_cpu_forms
from .window_attention import Grid, Heads

NUM_CLASS_BIASES = 3
MAX_BIASES = 2**24  # of a block of queries without gradients, 64 MiB
ALIGNMENT = 8  # channels of a head that fast kernels of attention need a multiple of


def resize_table(table: Tensor, size: int) -> Tensor:
    """Resize a table ``(2 side - 1, d)`` of another grid linearly to ``(size, d)``."""
    if not torch.compiler.is_exporting() and len(table) == size:
        return table
    return F.interpolate(table.T[None], size=size, mode='linear')[0].T


def add_relative_positions(heads: Heads,
                           grid: Grid,
                           tables: tuple[Tensor, Tensor],
                           window_size: int | None = None) -> Heads:
    """Append channels to queries and keys whose products are the terms of relative positions.

    Attention then needs no mask: keys get indicators of their row and column, and queries the
    products with the positions of all rows and columns. Queries are scaled, so that attention that
    divides by the square root of their width gives the right sum. On a CPU, values are padded with
    zeros to the same width, without which torch would store all ``(h w)**2`` weights.

    Args:
        heads: Queries, keys and values of the tokens of the grid, ``(B, heads, h w, d)``.
        grid: Rows and columns.
        tables: Relative positions of rows and of columns. They are resized, if necessary.
        window_size: Side of the windows in tokens. Defaults to one window of the whole grid.

    Returns:
        Heads of more channels; the first ``d`` of the values are the given ones.
    """
    query, width = heads.query.unflatten(2, grid), heads.query.shape[-1]
    terms, indicators = [], []
    for axis, (side, table) in enumerate(zip(grid, tables, strict=True)):
        places = torch.arange(side, device=query.device)
        count = side if window_size is None else window_size
        if window_size is not None:
            places = places % window_size
        others = torch.arange(count, device=query.device)
        index = places[:, None] - others + (count - 1)
        positions = resize_table(table, 2 * count - 1)[index].mT  # (side, d, count)
        indicator = (places[:, None] == others).to(heads.key.dtype)
        if axis == 0:
            terms.append(query @ positions)
            indicators.append(indicator[:, None].expand(*grid, count))
        else:
            terms.append((query.transpose(2, 3) @ positions).transpose(2, 3))
            indicators.append(indicator.expand(*grid, count))
    added = sum(term.shape[-1] for term in terms)
    padding = -(width + added) % ALIGNMENT
    total = width + added + padding
    terms = torch.cat(terms, dim=-1).flatten(2, 3)
    indicators = torch.cat(indicators, dim=-1).flatten(0, 1)
    indicators = indicators.expand(*heads.key.shape[:2], -1, -1)
    query = torch.cat((heads.query * (total / width)**0.5, terms * total**0.5), dim=-1)
    key = torch.cat((heads.key, indicators), dim=-1)
    value = heads.value
    if should_use_cpu_forms(value) and not torch.compiler.is_exporting():
        value = F.pad(value, (0, total - width))
    return Heads(F.pad(query, (0, padding)), F.pad(key, (0, padding)), value)


def resize_bias_table(table: Tensor, grid: Grid) -> Tensor:
    """Resize biases ``((2 side - 1)**2 + 3, heads)`` bicubically to those of a grid.

    Those of the class token stay as they are.
    """
    biases, others = table[:-NUM_CLASS_BIASES], table[-NUM_CLASS_BIASES:]
    side, size = math.isqrt(len(biases)), (2 * grid[0] - 1, 2 * grid[1] - 1)
    if not torch.compiler.is_exporting() and size == (side, side):
        return table
    maps = biases.T.unflatten(1, (side, side))[None]
    resized = F.interpolate(maps, size=size, mode='bicubic')[0].flatten(1).T
    return torch.cat((resized, others))


def attend_with_table(heads: Heads, grid: Grid, table: Tensor, dropout: float = 0.) -> Tensor:
    """Attend ``(B, heads, 1 + h w, d)`` with the biases of a table, some rows of queries at a time.

    All biases of all queries would take ``heads (1 + h w)**2`` numbers. With gradients and in
    exports, there is one block.

    Args:
        heads: Queries, keys and values of the class token and the tokens of the grid.
        grid: Rows and columns.
        table: Biases ``((2 side - 1)**2 + 3, heads)``, resized to the grid if necessary.
        dropout: Probability that a weight is dropped.
    """
    table = resize_bias_table(table, grid).to(heads.query.dtype)
    of_class, to_class, both = table[-NUM_CLASS_BIASES:]
    biases = table[:-NUM_CLASS_BIASES].T.unflatten(1, (2 * grid[0] - 1, 2 * grid[1] - 1))
    rows, columns = (torch.arange(side, device=table.device) for side in grid)
    across = columns[:, None] - columns + (grid[1] - 1)  # (w, w) of queries and keys
    key, value = heads.key, heads.value

    def attend(query: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask[None], dropout_p=dropout)

    first = torch.cat((both[:, None], of_class[:, None].expand(-1, grid[0] * grid[1])), dim=1)
    parts = [attend(heads.query[:, :, :1], first[:, None])]
    size = grid[0]
    if not (torch.is_grad_enabled() or torch.compiler.is_exporting()):
        size = max(1, MAX_BIASES // (len(biases) * grid[0] * grid[1]**2))
    for top in range(0, grid[0], size) if size != grid[0] else (0, ):
        down = rows[top:top + size, None] - rows + (grid[0] - 1)  # (r, h)
        mask = biases[:, down][..., across]  # (heads, r, h, w, w)
        mask = mask.transpose(2, 3).flatten(3).flatten(1, 2)  # (heads, r w, h w)
        mask = torch.cat((to_class[:, None, None].expand(-1, mask.shape[1], 1), mask), dim=2)
        start = 1 + top * grid[1]
        parts.append(attend(heads.query[:, :, start:start + mask.shape[1]], mask))
    return torch.cat(parts, dim=2)
