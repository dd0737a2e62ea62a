"""Blocks with one norm and no value projections, and the pre-norm block they are compared with.

Queries and keys share a layer ``qk``. No map of all pairs of tokens is stored:
scaled_dot_product_attention computes the softmax, and its shaping is added outside. The MLP has a
hidden layer of ``4 C`` and GELU. The paper scales it down by a learned factor; here the second
layer's small initial weights take its place. Shapes: ``B`` images, ``h`` heads, ``N`` tokens, ``d``
channels of a head, ``C = h d``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from timm.layers import DropPath, Mlp
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError

from ..kernels.fast_path import add_branch, is_drop_path, is_unobserved
from ..kernels.layers import add, call_linear, feed_forward

EPS = 1e-6  # all norms, as in vision transformers
Gains = tuple[float, float]  # alpha and beta: gains of the identity and of attention


def initial_gains(init: str | Sequence[float], depth: int) -> list[Gains]:
    """Return ``(alpha, beta)`` of each block before training."""
    dynamic = [(1 / i, 1 - 1 / i) for i in range(1, depth + 1)]
    if init == 'dynamic':
        return dynamic
    if init == 'inverse_dynamic':
        return [(beta, alpha) for alpha, beta in dynamic]
    if isinstance(init, str) or not isinstance(init, Sequence) or len(init) != 2:
        raise UserError("init must be 'dynamic', 'inverse_dynamic' or a pair (alpha, beta) for "
                        f'all blocks, got {init!r}')
    return [(float(init[0]), float(init[1]))] * depth


class ShapedAttention(nn.Module):
    """Attention without values and output layer, shaped per head.

    ``(alpha I + beta A(x) - gamma C) x``, the paper's equations 5, 12 and 13 with tokens instead of
    values. All elements of C are 1/N, as of A(x) for the initial queries of zero (section 4.1).

    Args:
        dim: Width ``C``.
        num_heads: Number of heads ``h``.
        centring: Subtract ``gamma C``.

    Attributes:
        alpha, beta, gamma: Learned gains per head, ``(h,)``; ``gamma`` is None without centring.
    """

    def __init__(self, dim: int, num_heads: int, *, centring: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_width = num_heads, dim // num_heads
        self.qk = nn.Linear(dim, 2 * dim)
        self.alpha = nn.Parameter(torch.ones(num_heads))
        self.beta = nn.Parameter(torch.ones(num_heads))
        self.gamma = nn.Parameter(torch.ones(num_heads)) if centring else None

    def forward(self, x: Tensor) -> Tensor:
        query, key = split_heads(call_linear(self.qk, x), 2, self.num_heads)
        value, = split_heads(x, 1, self.num_heads)
        kept = x * self._repeat_per_channel(self.alpha)
        if self.gamma is not None:
            kept = kept - x.mean(dim=1, keepdim=True) * self._repeat_per_channel(self.gamma)
        return add(kept, attend(query, key, value), self._repeat_per_channel(self.beta))

    def _repeat_per_channel(self, gain: Tensor) -> Tensor:
        """Repeat the gains of heads ``(h,)`` for their channels, ``(C,)``."""
        return gain[:, None].expand(-1, self.head_width).flatten()

    @torch.no_grad()
    def init_gains(self, alpha: float, beta: float) -> None:
        """Set all heads' gains; gamma becomes beta, so that attention starts as ``alpha I``."""
        self.alpha.fill_(alpha)
        self.beta.fill_(beta)
        if self.gamma is not None:
            self.gamma.fill_(beta)

    @torch.no_grad()
    def init_weights(self) -> None:
        """Set the queries to zero; timm calls this after its own initialization."""
        dim = self.qk.in_features
        self.qk.weight[:dim].zero_()
        self.qk.bias[:dim].zero_()


class PlainAttention(nn.Module):
    """Multi-head attention of ``num_heads`` heads with values and output layer, as timm's."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk = nn.Linear(dim, 2 * dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key = split_heads(call_linear(self.qk, x), 2, self.num_heads)
        value, = split_heads(call_linear(self.v, x), 1, self.num_heads)
        return call_linear(self.proj, attend(query, key, value))


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """Split ``(B, N, parts C)`` into ``parts`` tensors ``(B, h, N, d)``."""
    return x.unflatten(2, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return attention ``(B, N, C)`` of queries, keys and values, each ``(B, h, N, d)``."""
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class SimplifiedBlock(nn.Module):
    """Base class of blocks with :class:`ShapedAttention` and a single norm."""
    norm_name: ClassVar[str]  # distinguishes the types of blocks in files

    def __init__(self,
                 dim: int,
                 num_heads: int,
                 *,
                 centring: bool = False,
                 drop_path: float = 0.) -> None:
        super().__init__()
        self.add_module(self.norm_name, nn.LayerNorm(dim, eps=EPS))
        self.attn = ShapedAttention(dim, num_heads, centring=centring)
        self.mlp = Mlp(dim, 4 * dim)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()


class ParallelBlock(SimplifiedBlock):
    """Shaped attention and MLP in parallel, without residual: SAS-P.

    ``A(norm(x)) + drop_path(mlp(norm(x)))``: the paper's equation 7 with a skip gain of 0 and the
    attention of equation 12 (section 4.3). Stochastic depth drops only the MLP.
    """
    norm_name = 'norm'

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        mixed = _attend_shaped(self.attn, x)
        return feed_forward(mixed, None, self.mlp, None, self.drop_path, given=x)


class SequentialBlock(SimplifiedBlock):
    """Shaped attention without a residual, then the MLP with one: SAS with a single norm.

    ``y + drop_path(mlp(y))`` with ``y = A(norm1(x))``: the attention of the paper's equation 12 and
    the MLP of equation 1. The paper normalizes ``y`` again. Here the MLP gets ``y`` unchanged, a
    weighted mean of normalized tokens.
    """
    norm_name = 'norm1'

    def forward(self, x: Tensor) -> Tensor:
        mixed = _attend_shaped(self.attn, self.norm1(x))
        return feed_forward(mixed, None, self.mlp, None, self.drop_path)


class PlainBlock(nn.Module):
    """Pre-norm block of vision transformers, the paper's equation 1."""

    def __init__(self, dim: int, num_heads: int, *, drop_path: float = 0.) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = PlainAttention(dim, num_heads)
        self.drop_path1 = DropPath(drop_path) if drop_path else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, 4 * dim)
        self.drop_path2 = DropPath(drop_path) if drop_path else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attn(self.norm1(x))
        is_private = is_unobserved(self.attn, PlainAttention) and is_unobserved(
            self.attn.proj, nn.Linear)
        if is_private and is_drop_path(self.drop_path1):
            x = add(x, self.drop_path1(attended))
        else:
            x = add_branch(x, attended, None, self.drop_path1)
        return feed_forward(x, self.norm2, self.mlp, None, self.drop_path2)


BLOCKS: dict[str, Any] = {
    'parallel': ParallelBlock,
    'sequential': SequentialBlock,
    'plain': PlainBlock,
}


def _attend_shaped(attention: nn.Module, x: Tensor) -> Tensor:
    """Return ``attention(x)``, copied if hooks keep it, since the caller may overwrite it."""
    attended = attention(x)
    return attended if is_unobserved(attention, ShapedAttention) else attended.clone()
