"""Attention of simplified blocks, and that of the block they are compared with.

Both have queries and keys in one layer ``qk``. No map of all pairs of tokens is stored:
scaled_dot_product_attention computes the softmax, and what shapes it is added outside. Shapes:
``B`` images, ``h`` heads, ``N`` tokens, ``d`` channels of a head, ``C = h d``.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from colonnade.common.errors import UserError

from ..kernels.layers import add, call_linear

Gains = tuple[float, float]  # of the identity and of attention: alpha, beta


def initial_gains(init: str | Sequence[float], depth: int) -> list[Gains]:
    """``(alpha, beta)`` of each block before training.

    Args:
        init: ``'dynamic'`` is ``(1 / i, 1 - 1 / i)`` in block i = 1, 2, …; ``'inverse_dynamic'``
            is ``(1 - 1 / i, 1 / i)``; a pair is the same in all blocks.
        depth: Number of blocks.

    Raises:
        ValueError: If there is no such initialisation.
    """
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
    values. The matrix C has 1/N everywhere, which is A(x) for queries of zero. They start there
    (section 4.1).

    Args:
        dim: Width ``C``.
        num_heads: Heads ``h``.
        centring: Subtract ``gamma C``.

    Attributes:
        alpha, beta, gamma: A learned gain per head, ``(h,)``; ``gamma`` is None without centring.
    """

    def __init__(self, dim: int, num_heads: int, *, centring: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_width = num_heads, dim // num_heads
        self.qk = nn.Linear(dim, 2 * dim)
        self.alpha = nn.Parameter(torch.ones(num_heads))
        self.beta = nn.Parameter(torch.ones(num_heads))
        self.gamma = nn.Parameter(torch.ones(num_heads)) if centring else None

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        query, key = split_heads(call_linear(self.qk, x), 2, self.num_heads)
        value, = split_heads(x, 1, self.num_heads)
        kept = x * self._per_channel(self.alpha)
        if self.gamma is not None:
            kept = kept - x.mean(dim=1, keepdim=True) * self._per_channel(self.gamma)
        return add(kept, attend(query, key, value), self._per_channel(self.beta))

    def _per_channel(self, gain: Tensor) -> Tensor:
        """Gains of heads ``(h,)`` as those of their channels, ``(C,)``."""
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
        """Set the queries to zero; timm calls this behind its own initialisation of layers."""
        dim = self.qk.in_features
        self.qk.weight[:dim].zero_()
        self.qk.bias[:dim].zero_()


class PlainAttention(nn.Module):
    """Multi-head attention with values and output layer, as timm's of vision transformers.

    Args:
        dim: Width ``C``.
        num_heads: Heads ``h``.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk = nn.Linear(dim, 2 * dim)
        self.v = nn.Linear(dim, dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        query, key = split_heads(call_linear(self.qk, x), 2, self.num_heads)
        value, = split_heads(call_linear(self.v, x), 1, self.num_heads)
        return call_linear(self.proj, attend(query, key, value))


def split_heads(x: Tensor, parts: int, num_heads: int) -> tuple[Tensor, ...]:
    """``(B, N, parts C)`` to so many tensors ``(B, h, N, d)``."""
    return x.unflatten(2, (parts, num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Values weighted by the softmax over keys; each is ``(B, h, N, d)``, the sum ``(B, N, C)``."""
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
