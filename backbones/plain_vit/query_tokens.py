"""Last blocks of a plain vision transformer, run with queries: EoMT (arXiv 2503.19108).

Shapes: ``B`` images, ``Q`` queries, ``P`` prefix tokens, ``N = h w`` patches, ``C`` width.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError

from ..columnar import ColumnarBackbone
from ..kernels.memory_format import as_map
from .window_attention import Grid, Heads


@dataclass(eq=False)
class QueryTokens:
    """Tokens before the last blocks, which run with the queries of a head.

    Attributes:
        tokens: Prefix tokens and patches ``(B, P + N, C)``.
        place: Rows and columns of patches, and their rotary positions.
        num_blocks: Number of blocks that have not run.
        num_prefix_tokens: Number P of prefix tokens.
        step: Function that runs a block, given its index, tokens and place.
        norm: Final norm.
    """
    tokens: Tensor
    place: tuple
    num_blocks: int
    num_prefix_tokens: int
    step: Callable[[int, Tensor, tuple], Tensor]
    norm: nn.Module

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches."""
        return self.place[0]

    def prepend(self, queries: Tensor) -> Tensor:
        """Return queries ``(Q, C)`` and tokens of each image, ``(B, Q + P + N, C)``."""
        queries = queries.to(self.tokens.dtype).expand(self.tokens.shape[0], -1, -1)
        return torch.cat((queries, self.tokens), dim=1)

    def run_block(self, index: int, x: Tensor, open_patches: Tensor | None = None) -> Tensor:
        """Run one of the last blocks on tokens ``(B, Q + P + N, C)``.

        Args:
            index: Index among the last blocks.
            x: Tokens, queries first.
            open_patches: Patches that each query attends to, ``(B, Q, N)``, bool. Defaults to all.
        """
        place = self.place if open_patches is None else (*self.place, open_patches)
        return self.step(index - self.num_blocks, x, place)

    def split(self, x: Tensor, num_queries: int) -> tuple[Tensor, Tensor]:
        """Return the final norm of queries ``(B, Q, C)`` and of patches ``(B, C, h, w)``."""
        x = self.norm(x)
        num_others = num_queries + self.num_prefix_tokens
        return x[:, :num_queries], as_map(x[:, num_others:], self.grid[0])


def check_query_blocks(backbone: ColumnarBackbone, num_blocks: int, is_plain: bool) -> None:
    """Raise a UserError if the last blocks of a backbone cannot run with queries.

    Args:
        backbone: Backbone of plain blocks, or of others.
        num_blocks: Number of last blocks.
        is_plain: True if all blocks are plain.
    """
    if not num_blocks:
        return
    if type(num_blocks) is not int or not 0 < num_blocks <= backbone.depth:
        raise UserError(f'num_query_blocks must be between 0 and {backbone.depth}, got '
                        f'{num_blocks!r}')
    if not backbone.norm_features:
        raise UserError('num_query_blocks requires the final norm: set norm_features=True')
    if len(backbone.blocks) < backbone.depth:
        raise UserError(f'num_query_blocks requires all {backbone.depth} blocks: remove '
                        'out_indices, or set the last one to -1')
    if not is_plain:
        raise UserError('num_query_blocks is not supported for the blocks of '
                        f'{backbone.settings["model"]}')


def attend_to_open_patches(heads: Heads, open_patches: Tensor, dropout: float = 0.) -> Tensor:
    """Attend with the first Q tokens to open patches and all other tokens, with others to all.

    Only the rows of queries have a mask, so no memory grows with ``N * N``.

    Args:
        heads: Queries, keys and values ``(B, heads, Q + P + N, d)``.
        open_patches: Booleans ``(B, Q, N)``; all are False if a query attends to no patch.
        dropout: Dropout rate of the attention.
    """
    num_queries, num_patches = open_patches.shape[1:]
    others = heads.key.shape[2] - num_patches
    mask = F.pad(open_patches, (others, 0), value=True)[:, None]
    queries = F.scaled_dot_product_attention(
        heads.query[:, :, :num_queries], heads.key, heads.value, attn_mask=mask, dropout_p=dropout)
    tokens = F.scaled_dot_product_attention(
        heads.query[:, :, num_queries:], heads.key, heads.value, dropout_p=dropout)
    return torch.cat((queries, tokens), dim=2)
