"""Blocks of one norm without projections of values, and the pre-norm block beside them.

Tokens are ``(B, N, C)``. The MLP has a hidden layer of ``4 C`` and GELU. The paper downweights it
by a learned factor. Here the second layer's weights, which start small, take its place.
"""
from __future__ import annotations

from typing import Any, ClassVar

from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from ..kernels.fast_path import add_branch, is_drop_path, is_unobserved
from ..kernels.layers import add, feed_forward
from .attention import PlainAttention, ShapedAttention

EPS = 1e-6  # of all norms, as in vision transformers


class SimplifiedBlock(nn.Module):
    """The layers of a block with shaped attention and a single norm.

    Args:
        dim: Width ``C``.
        num_heads: Heads of attention.
        centring: See :class:`.attention.ShapedAttention`.
        drop_path: Rate of stochastic depth.

    Attributes:
        norm_name: Name of the norm, by which files tell the kinds of blocks apart.
    """
    norm_name: ClassVar[str]

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
        self.drop_path = stochastic_depth(drop_path)


class ParallelBlock(SimplifiedBlock):
    """Shaped attention and MLP side by side, with no residual: SAS-P.

    ``A(norm(x)) + drop_path(mlp(norm(x)))``: the paper's equation 7 with a skip gain of 0 and the
    attention of equation 12 (section 4.3). Stochastic depth leaves out the MLP alone: attention is
    the only way for the tokens.
    """
    norm_name = 'norm'

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        x = self.norm(x)
        mixed = call_attention(self.attn, x)
        return feed_forward(mixed, None, self.mlp, None, self.drop_path, given=x)


class SequentialBlock(SimplifiedBlock):
    """Shaped attention without a residual, then the MLP with one: SAS with a single norm.

    ``y + drop_path(mlp(y))`` with ``y = A(norm1(x))``: the attention of the paper's equation 12 and
    the MLP of equation 1. The paper normalises ``y`` again. Here ``y`` goes to the MLP as it is: a
    weighted mean of normalised tokens.
    """
    norm_name = 'norm1'

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        mixed = call_attention(self.attn, self.norm1(x))
        return feed_forward(mixed, None, self.mlp, None, self.drop_path)


class PlainBlock(nn.Module):
    """The block of vision transformers: norms before attention and MLP, a residual around each.

    The paper's equation 1. For arguments see :class:`SimplifiedBlock`.
    """

    def __init__(self, dim: int, num_heads: int, *, drop_path: float = 0.) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = PlainAttention(dim, num_heads)
        self.drop_path1 = stochastic_depth(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = Mlp(dim, 4 * dim)
        self.drop_path2 = stochastic_depth(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``."""
        attended = self.attn(self.norm1(x))
        unseen = is_unobserved(self.attn, PlainAttention) and is_unobserved(
            self.attn.proj, nn.Linear)
        if unseen and is_drop_path(self.drop_path1):
            x = add(x, self.drop_path1(attended))
        else:
            x = add_branch(x, attended, None, self.drop_path1)
        return feed_forward(x, self.norm2, self.mlp, None, self.drop_path2)


BLOCKS: dict[str, Any] = {
    'parallel': ParallelBlock,
    'sequential': SequentialBlock,
    'plain': PlainBlock,
}


def stochastic_depth(rate: float) -> nn.Module:
    return DropPath(rate) if rate else nn.Identity()


def call_attention(attention: nn.Module, x: Tensor) -> Tensor:
    """``attention(x)``, or a copy if others see it: what is returned may be overwritten."""
    attended = attention(x)
    return attended if is_unobserved(attention, ShapedAttention) else attended.clone()
