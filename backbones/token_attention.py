"""Where a token of a vision transformer looks: rows of its attention as images.

Shapes: ``B`` images, ``h, w`` grid of tokens, ``N = h w``, ``P`` prefix tokens, ``d`` channels of a
head.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from colonnade.common.errors import UserError

from .attention_maps import captured_calls, chosen_block
from .cait.talking_heads import BoundedTalkingHeadAttn
from .columnar import ColumnarBackbone
from .plain_vit.attention import SelfAttention
from .simplified_vit.attention import PlainAttention, ShapedAttention, split_heads

Grid = tuple[int, int]


class TokenAttention(NamedTuple):
    """Where one token looks.

    Attributes:
        maps: Weights of the image's tokens, ``(B, heads, h, w)``; 0 outside of a window.
        to_prefix: Weights of the prefix tokens, ``(B, heads, P)``; with them, the weights of a head
            sum to 1.
    """
    maps: Tensor
    to_prefix: Tensor


@torch.no_grad()
def token_attention(backbone: ColumnarBackbone,
                    img: Tensor,
                    token: int | Grid | None = None,
                    block: int = -1) -> TokenAttention:
    """The softmax weights by which a token attends to all others, head by head.

    With talking heads (CaiT) these are the weights behind the first mixing of heads, before the
    second. With shaped attention (SimplifiedViT) they are the matrix A(x), without the gains.

    Args:
        backbone: A backbone that :func:`has_token_attention`.
        img: ``(B, 3, H, W)``, normalised.
        token: Row and column in the grid, or the number of a prefix token. ``None`` is the first
            prefix token, the class token, and without one the middle of the grid.
        block: Which block; negative numbers count from the last that was built.

    Raises:
        ValueError: If the backbone has no such attention, or there is no such block or token.
    """
    if not has_token_attention(backbone):
        raise UserError(f'{backbone.describe()} has no attention between tokens that is known')
    layer = chosen_block(backbone, block).attn
    with captured_calls([layer]) as calls:
        last = backbone(img)[-1]
    grid = (last[0] if isinstance(last, tuple) else last).shape[-2:]
    x, *place = calls[0]
    prefix = x.shape[1] - grid[0] * grid[1]
    weights = WEIGHTS[type(layer)](layer, x, _number(token, prefix, grid), *place)
    return TokenAttention(weights[..., prefix:].unflatten(2, grid), weights[..., :prefix])


def has_token_attention(backbone: nn.Module) -> bool:
    """Whether all blocks have an attention between tokens that is known here."""
    return isinstance(backbone, ColumnarBackbone) and all(
        type(dict(block.named_children()).get('attn')) in WEIGHTS for block in backbone.blocks)


def _number(token: int | Grid | None, prefix: int, grid: Grid) -> int:
    """The place of a token among all, prefix tokens first."""
    if token is None:
        token = 0 if prefix else (grid[0] // 2, grid[1] // 2)
    if isinstance(token, int):
        if not 0 <= token < prefix:
            raise UserError(f'the backbone has {prefix} prefix tokens, and none of number {token}')
        return token
    row, column = token
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise UserError(f'the grid has {grid[0]} rows and {grid[1]} columns, and no token '
                        f'({row}, {column})')
    return prefix + row * grid[1] + column


def _of_self_attention(layer: SelfAttention,
                       x: Tensor,
                       token: int,
                       grid: Grid,
                       rope: Tensor | None = None) -> Tensor:
    """``(B, heads, P + N)`` of timm's vision transformers; a window's others have the weight 0."""
    heads = layer.heads(x, grid, rope)
    return _softmax(heads.query, heads.key, token, _seen(layer, token, x, grid))


def _seen(layer: SelfAttention, token: int, x: Tensor, grid: Grid) -> Tensor | None:
    """Which tokens ``(P + N)`` a token sees; None if all."""
    prefix = x.shape[1] - grid[0] * grid[1]
    if layer.window_size is None or token < prefix:
        return None
    rows, columns = (torch.arange(side, device=x.device) // layer.window_size for side in grid)
    window = rows[:, None] * (max(grid) + 1) + columns  # a number for each window
    seen = window.flatten() == window.flatten()[token - prefix]
    return torch.cat((seen.new_ones(prefix), seen))


def _of_talking_heads(layer: BoundedTalkingHeadAttn, x: Tensor, token: int) -> Tensor:
    """``(B, heads, N)`` of CaiT: softmax of the logits that ``proj_l`` mixes."""
    query, key, _ = split_heads(layer.qkv(x), 3, layer.num_heads)
    logits = query[:, :, token:token + 1] * layer.scale @ key.mT  # (B, h, 1, N)
    return layer.proj_l(logits[:, :, 0].mT).mT.softmax(dim=-1)


def _of_simplified(layer: ShapedAttention | PlainAttention, x: Tensor, token: int) -> Tensor:
    """``(B, heads, N)`` of SimplifiedViT."""
    query, key = split_heads(layer.qk(x), 2, layer.num_heads)
    return _softmax(query, key, token)


def _softmax(query: Tensor, key: Tensor, token: int, seen: Tensor | None = None) -> Tensor:
    """Weights ``(B, heads, tokens)`` of a query for the keys that it sees."""
    logits = query[:, :, token:token + 1] * query.shape[-1]**-0.5 @ key.mT
    if seen is not None:
        logits = logits.masked_fill(~seen, -torch.inf)
    return logits[:, :, 0].softmax(dim=-1)


#: layer of attention -> weights of a token, from the arguments of its call
WEIGHTS: dict[type[nn.Module], Callable[..., Tensor]] = {
    SelfAttention: _of_self_attention,
    BoundedTalkingHeadAttn: _of_talking_heads,
    ShapedAttention: _of_simplified,
    PlainAttention: _of_simplified,
}
