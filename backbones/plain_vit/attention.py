"""Self-attention of timm's vision transformers, of all tokens or within windows.

Shapes: ``B`` images, ``P`` prefix tokens (class and registers), ``N = h w`` tokens of the grid,
``C`` width, ``d`` channels of a head.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from timm.layers import Attention, AttentionRope, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.layers import call_linear, linear
from ..kernels.untouched import is_plain

KINDS = (Attention, AttentionRope, EvaAttention)
Grid = tuple[int, int]


class Heads(NamedTuple):
    """Queries, keys and values, each ``(B, heads, tokens, d)``."""
    query: Tensor
    key: Tensor
    value: Tensor


class SelfAttention(nn.Module):
    """One of timm's attention layers, with its parameters under their names.

    Attributes:
        window_size: Side of the windows that tokens of the grid attend within; None for all.
    """
    q_bias: nn.Parameter | None
    v_bias: nn.Parameter | None

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name, child in layer.named_children():
            if name != 'attn_drop':  # a module that is not called
                self.add_module(name, child)
        for name, parameter in layer._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in layer._buffers.items():
            self.register_buffer(name, buffer, name not in layer._non_persistent_buffers_set)
        for name in ('qkv', 'q_bias', 'gate'):  # some layers have none
            if not hasattr(self, name):
                setattr(self, name, None)
        self.attn_drop_rate: float = layer.attn_drop.p
        self.num_heads: int = layer.num_heads
        self.num_key_heads: int = getattr(layer, 'num_kv_heads', layer.num_heads)
        self.rotate_half: bool = getattr(layer, 'rotate_half', False)
        self.window_size: int | None = None

    def forward(self, x: Tensor, grid: Grid | None = None, rope: Tensor | None = None) -> Tensor:
        """``(B, P + N, C)`` to ``(B, P + N, C)``.

        Args:
            x: Tokens, prefix tokens first.
            grid: That of the others, ``(h, w)``.
            rope: Rotary positions of the grid's tokens as timm's, ``(N, 2 d)`` or
                ``(heads, N, 2 d)``.
        """
        heads = self._heads(x)
        prefix = 0 if grid is None else x.shape[1] - grid[0] * grid[1]
        if rope is not None:
            query, key = (self._rotated(part, rope, prefix) for part in heads[:2])
            heads = Heads(query, key, heads.value)
        if self.num_key_heads < self.num_heads:  # queries share keys and values
            repeats = self.num_heads // self.num_key_heads
            key, value = (part.repeat_interleave(repeats, dim=1) for part in heads[1:])
            heads = Heads(heads.query, key, value)
        dropout = self.attn_drop_rate if self.training else 0.
        if self.window_size is None or grid is None:
            out = F.scaled_dot_product_attention(*heads, dropout_p=dropout)
        else:
            out = attend_in_windows(heads, grid, self.window_size, dropout)
        out = self.norm(out.transpose(1, 2).flatten(2))
        if self.gate is not None:
            out = out * call_linear(self.gate, x).sigmoid()
        return self.proj_drop(call_linear(self.proj, out))

    @torch.no_grad()
    def join_biases(self) -> None:
        """Give the layer of queries, keys and values the biases that EVA keeps apart from it."""
        if self.q_bias is not None:
            self.qkv.bias = nn.Parameter(torch.cat((self.q_bias, self.k_bias, self.v_bias)))
            self.q_bias = self.v_bias = None

    def _heads(self, x: Tensor) -> Heads:
        if self.qkv is None:
            layers = (self.q_proj, self.k_proj, self.v_proj)
            counts = (self.num_heads, self.num_key_heads, self.num_key_heads)
            query, key, value = (call_linear(layer, x).unflatten(2, (count, -1)).transpose(1, 2)
                                 for layer, count in zip(layers, counts, strict=True))
        else:
            query, key, value = self._projected(x).unflatten(2, (3, self.num_heads, -1)).permute(
                2, 0, 3, 1, 4)
        return Heads(self.q_norm(query), self.k_norm(key), value)

    def _projected(self, x: Tensor) -> Tensor:
        """Queries, keys and values side by side; EVA's keys have no learned bias."""
        if self.q_bias is None:
            return call_linear(self.qkv, x)
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        if is_plain(self.qkv, nn.Linear):
            return linear(x, self.qkv.weight, bias)
        return self.qkv(x) + bias

    def _rotated(self, x: Tensor, rope: Tensor, prefix: int) -> Tensor:
        """Queries or keys with the rotary positions of the grid's tokens."""
        rotated = apply_rot_embed_cat(x[:, :, prefix:], rope, half=self.rotate_half).to(x.dtype)
        return torch.cat((x[:, :, :prefix], rotated), dim=2) if prefix else rotated


def attend_in_windows(heads: Heads, grid: Grid, window_size: int, dropout: float = 0.) -> Tensor:
    """Attention of each token to those of its window and to the prefix tokens; theirs to all.

    Windows begin at the top left; those at the bottom and right may hold fewer tokens. ViTDet
    (arXiv 2203.16527, section 3) has windows without prefix tokens, and attends to zeros there.

    Args:
        heads: Of all tokens, prefix tokens first, each ``(B, heads, P + N, d)``.
        grid: ``(h, w)``.
        window_size: Side of the windows, in tokens.
        dropout: Share of the attention weights that are set to 0.

    Returns:
        ``(B, heads, P + N, d)``.
    """
    sides = min(window_size, grid[0]), min(window_size, grid[1])
    prefix = heads.query.shape[2] - grid[0] * grid[1]
    windows = [split(part[:, :, prefix:], grid, sides) for part in heads]
    count = len(windows[0]) // max(len(heads.query), 1)
    if prefix:
        for index in (1, 2):  # keys and values
            tokens = heads[index][:, :, :prefix].repeat_interleave(count, dim=0)
            windows[index] = torch.cat((tokens, windows[index]), dim=2)
    mask = real_keys(grid, sides, prefix, heads.query.device)
    if mask is not None:
        mask = mask.repeat(len(heads.query), 1)[:, None, None]
    attended = F.scaled_dot_product_attention(*windows, attn_mask=mask, dropout_p=dropout)
    out = join(attended, grid, sides)
    if not prefix:
        return out
    of_prefix = F.scaled_dot_product_attention(
        heads.query[:, :, :prefix], heads.key, heads.value, dropout_p=dropout)
    return torch.cat((of_prefix, out), dim=2)


def padding(grid: Grid, sides: Grid) -> Grid:
    """Rows and columns that are missing at the bottom and right for whole windows."""
    return -grid[0] % sides[0], -grid[1] % sides[1]


def split(x: Tensor, grid: Grid, sides: Grid) -> Tensor:
    """``(B, heads, N, d)`` to windows ``(B windows, heads, tokens of a window, d)``."""
    x = x.unflatten(2, grid)
    down, right = padding(grid, sides)
    if down or right:
        x = F.pad(x, (0, 0, 0, right, 0, down))
    x = x.unflatten(3, (-1, sides[1])).unflatten(2, (-1, sides[0]))
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)


def join(windows: Tensor, grid: Grid, sides: Grid) -> Tensor:
    """The inverse of :func:`split`."""
    rows, columns = (-(-size // side) for size, side in zip(grid, sides, strict=True))
    x = windows.unflatten(0, (-1, rows, columns)).unflatten(4, sides)
    x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)
    return x[:, :, :grid[0], :grid[1]].flatten(2, 3)


def real_keys(grid: Grid, sides: Grid, prefix: int, device: torch.device) -> Tensor | None:
    """Which keys of each window are no padding, ``(windows, P + tokens of a window)``."""
    if not any(padding(grid, sides)):
        return None
    real = split(torch.ones(1, 1, grid[0] * grid[1], 1, device=device), grid, sides)[:, 0, :, 0]
    return F.pad(real, (prefix, 0), value=1.).bool()
