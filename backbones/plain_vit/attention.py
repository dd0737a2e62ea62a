"""Self-attention of timm's vision transformers, of all tokens or within windows.

Shapes: ``B`` images, ``P`` prefix tokens (class and registers), ``N = h w`` tokens of the grid,
``C`` width, ``d`` channels of a head.
"""
from __future__ import annotations

import torch
from timm.layers import Attention, AttentionRope, apply_rot_embed_cat
from timm.models.eva import EvaAttention
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.devices import should_use_cpu_forms
from ..kernels.fast_path import LINEAR, is_plain, is_unobserved
from ..kernels.layers import call_linear, linear
from .window_attention import Grid, Heads, attend_in_windows

KINDS = (Attention, AttentionRope, EvaAttention)


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
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in layer.named_buffers(recurse=False):
            self.register_buffer(name, buffer, name in layer.state_dict())
        own = {name.split('.')[0] for name, _ in layer.named_parameters()}
        for name in {'qkv', 'q_bias', 'gate'} - own:  # some layers have none
            setattr(self, name, None)
        self.attn_drop_rate: float = layer.attn_drop.p
        self.num_heads: int = layer.num_heads
        self.num_key_heads: int = getattr(layer, 'num_kv_heads', layer.num_heads)
        self.rotate_half: bool = getattr(layer, 'rotate_half', False)
        self.window_size: int | None = None

    def forward(self, x: Tensor, grid: Grid, rope: Tensor | None = None) -> Tensor:
        """``(B, P + N, C)`` to ``(B, P + N, C)``.

        Args:
            x: Tokens, prefix tokens first.
            grid: That of the others, ``(h, w)``.
            rope: Rotary positions of the grid's tokens as timm's, ``(N, 2 d)`` or
                ``(heads, N, 2 d)``.
        """
        heads = self.heads(x, grid, rope)
        dropout = self.attn_drop_rate if self.training else 0.
        if self.window_size is None:
            out = F.scaled_dot_product_attention(*heads, dropout_p=dropout)
        else:
            out = attend_in_windows(heads, grid, self.window_size, dropout)
        out = self.norm(out.transpose(1, 2).flatten(2))
        if self.gate is not None:
            out = out * call_linear(self.gate, x).sigmoid()
        return self.proj_drop(call_linear(self.proj, out))

    def heads(self, x: Tensor, grid: Grid, rope: Tensor | None = None) -> Heads:
        """Queries, keys and values, with rotary positions; arguments as for :meth:`forward`."""
        heads = self._heads(x)
        if rope is not None:
            heads = self._rotated(heads, rope, x.shape[1] - grid[0] * grid[1])
        if self.num_key_heads < self.num_heads:  # queries share keys and values
            repeats = self.num_heads // self.num_key_heads
            key, value = (part.repeat_interleave(repeats, dim=1) for part in heads[1:])
            heads = Heads(heads.query, key, value)
        return heads

    def init_non_persistent_buffers(self) -> None:
        """Fill what no file holds, as timm's modules do: biases of EVA's keys."""
        if self.q_bias is not None:
            self.k_bias.zero_()

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

    def _rotated(self, heads: Heads, rope: Tensor, prefix: int) -> Heads:
        """Queries and keys with the rotary positions of the grid's tokens.

        On a CPU without gradients, they are written over: head by head, which saves memory.
        """
        if self._can_rotate_inplace(heads.query):
            for part in (heads.query, heads.key):
                positions = rope.expand(part.shape[1], -1, -1)
                for tokens, position in zip(part[:, :, prefix:].unbind(1), positions, strict=True):
                    tokens.copy_(apply_rot_embed_cat(tokens, position, half=self.rotate_half))
            return heads
        return Heads(
            self._rotated_copy(heads.query, rope, prefix),
            self._rotated_copy(heads.key, rope, prefix), heads.value)

    def _rotated_copy(self, x: Tensor, rope: Tensor, prefix: int) -> Tensor:
        rotated = apply_rot_embed_cat(x[:, :, prefix:], rope, half=self.rotate_half).to(x.dtype)
        return torch.cat((x[:, :, :prefix], rotated), dim=2) if prefix else rotated

    def can_overwrite_output(self) -> bool:
        """Whether nobody else keeps what this layer gives."""
        return (is_unobserved(self, SelfAttention) and is_unobserved(self.proj, *LINEAR)
                and is_unobserved(self.proj_drop, nn.Dropout, nn.Identity))

    def _can_rotate_inplace(self, x: Tensor) -> bool:
        """Return True if a CPU may overwrite queries and keys: no gradients, hooks or compiler."""
        fast = should_use_cpu_forms(x) and not torch.compiler.is_compiling()
        if not fast or torch.is_grad_enabled():
            return False
        return (is_unobserved(self.qkv, *LINEAR) and is_unobserved(self.q_norm, nn.Identity)
                and is_unobserved(self.k_norm, nn.Identity))
