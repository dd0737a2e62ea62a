"""Talking-heads attention in bounded memory (Shazeer et al., arXiv 2003.02436; CaiT uses it).

The heads' maps are mixed before and after the softmax. Both act on each pair of query and key, so
blocks of queries can be computed in turn, and only one block's maps exist at a time. Shapes: ``B``
images, ``h`` heads, ``N`` tokens, ``d`` channels of a head, ``C = h d``.
"""
from __future__ import annotations

from typing import Any

import torch
from timm.models.cait import TalkingHeadAttn
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..kernels.devices import should_use_cpu_forms
from ..kernels.fast_path import Parts, find_modified_layer, is_exact_type, is_linear, is_noop
from ..kernels.layers import call_linear

MIB = 2**20
#: MiB of one block's map; a CPU is fastest if the maps stay in its cache
CPU_BUDGET, ACCELERATOR_BUDGET = 4., 64.


def mix_heads(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Mix the maps ``(B, h, n, N)`` of heads by ``weight`` ``(h, h)``, output by input."""
    flat, weight = maps.flatten(2), weight.expand(len(maps), -1, -1)
    mixed = weight @ flat if bias is None else torch.baddbmm(bias[:, None], weight, flat)
    return mixed.view_as(maps)


def mixing_gradients(grad: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of :func:`mix_heads` by weight ``(h, h)`` and bias ``(h,)``."""
    return (grad.flatten(2) @ maps.flatten(2).transpose(1, 2)).sum(0), grad.sum((0, 2, 3))


def attend(query: Tensor, key: Tensor, value: Tensor, weight_l: Tensor, bias_l: Tensor,
           weight_w: Tensor, bias_w: Tensor) -> Tensor:
    """Return the result ``(B, h, n, d)`` of ``n`` queries, whose maps exist together."""
    maps = query @ key.transpose(-2, -1)  # (B, h, n, N)
    # The dtype keeps autocast from casting them to float32.
    maps = mix_heads(maps, weight_l, bias_l).softmax(dim=-1, dtype=maps.dtype)
    return mix_heads(maps, weight_w, bias_w) @ value


class TalkingHeads(Function):
    """Autograd function of :func:`talking_heads`.

    While a block's maps exist, nothing else is allocated, so that the next block reuses the memory.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weight_l: Tensor,
                bias_l: Tensor, weight_w: Tensor, bias_w: Tensor, block_size: int) -> Tensor:
        ctx.save_for_backward(query, key, value, weight_l, bias_l, weight_w, bias_w)
        ctx.block_size = block_size
        batch, heads, tokens, width = query.shape
        attended = query.new_empty(batch, tokens, heads, width)
        for begin in range(0, tokens, block_size):
            rows = slice(begin, begin + block_size)
            result = attend(query[:, :, rows], key, value, weight_l, bias_l, weight_w, bias_w)
            attended[:, rows] = result.transpose(1, 2)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weight_l, bias_l, weight_w, bias_w = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        # Sums over blocks need float32 also in half precision.
        sums = [
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
            for x in (key, value, weight_l, bias_l, weight_w, bias_w)
        ]
        for begin in range(0, query.shape[2], ctx.block_size):
            rows = slice(begin, begin + ctx.block_size)
            grad_rows = grad[:, rows].transpose(1, 2)  # (B, h, n, d)
            logits = query[:, :, rows] @ key.transpose(-2, -1)  # (B, h, n, N)
            weights = mix_heads(logits, weight_l, bias_l).softmax(dim=-1)

            grad_value = mix_heads(weights, weight_w, bias_w).transpose(-2, -1) @ grad_rows
            grad_maps = grad_rows @ value.transpose(-2, -1)
            grad_w = mixing_gradients(grad_maps, weights)
            grad_maps = mix_heads(grad_maps, weight_w.T)
            # Gradient of the softmax.
            grad_maps = weights * (grad_maps - (grad_maps * weights).sum(dim=-1, keepdim=True))
            del weights
            grad_l = mixing_gradients(grad_maps, logits)
            del logits
            grad_maps = mix_heads(grad_maps, weight_l.T)

            grad_query[:, :, rows] = grad_maps @ key
            grad_key = grad_maps.transpose(-2, -1) @ query[:, :, rows]
            parts = (grad_key, grad_value, *grad_l, *grad_w)
            for total, part in zip(sums, parts, strict=True):
                total += part
        return grad_query, *(x.to(grad.dtype) for x in sums), None


@torch.compiler.disable  # a compiler would unroll all blocks
def talking_heads(query: Tensor, key: Tensor, value: Tensor, mixing: tuple[Tensor, ...], *,
                  block_size: int) -> Tensor:
    """Compute talking-heads attention ``(B, N, h, d)`` for blocks of scaled queries.

    Queries, keys and values are ``(B, h, N, d)``. ``mixing`` are weight and bias that mix the
    logits, and those that mix the softmax weights. The result is exact for every block size. The
    backward pass recomputes each block's maps, so memory is ``O(B h block_size N)`` in both.
    """
    return TalkingHeads.apply(query, key, value, *mixing, block_size)


class BoundedTalkingHeadAttn(TalkingHeadAttn):
    """timm's talking-heads attention, with the same parameters, by blocks of queries.

    Attributes:
        block_size: Number of queries of a block. Defaults to as many as ``budget`` allows.
        budget: MiB of one map ``(B, h, block_size, N)``, of which two exist at a time in evaluation
            and about five in training. Defaults to 4 on a CPU and 64 elsewhere. If an accelerator
            needs one block only, each layer stores its maps for the gradients, as timm's does.
    """
    block_size: int | None = None
    budget: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Attend ``(B, N, C)`` to ``(B, N, C)``.

        It is timm's own forward with modified layers that mix heads, and in exports, which would
        unroll the blocks. That one needs memory for all pairs of tokens.
        """
        if torch.compiler.is_exporting() or find_modified_layer(self, HEADS_MIXING) is not None:
            return super().forward(x)
        qkv = call_linear(self.qkv, x).unflatten(2, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, h, N, d)
        query = query * self.scale
        mixing = tuple(
            x.to(query.dtype) for layer in (self.proj_l, self.proj_w)
            for x in (layer.weight, layer.bias))
        block_size = self.block_size or self._compute_block_size(query)
        if should_use_cpu_forms(query) or block_size < query.shape[2]:
            attended = talking_heads(query, key, value, mixing, block_size=block_size)
        else:
            attended = attend(query, key, value, *mixing).transpose(1, 2)
        out = call_linear(self.proj, attended.flatten(2))
        return out if is_noop(self.proj_drop) else self.proj_drop(out)

    def _compute_block_size(self, query: Tensor) -> int:
        batch, heads, tokens, _ = query.shape
        budget = self.budget or (CPU_BUDGET if should_use_cpu_forms(query) else ACCELERATOR_BUDGET)
        row = batch * heads * tokens * query.element_size()  # bytes
        return min(max(int(budget * MIB / max(row, 1)), 1), tokens)


#: layers that must be unmodified for blocks of queries
HEADS_MIXING: Parts = {'proj_l': is_linear, 'attn_drop': is_noop, 'proj_w': is_linear}
TALKING_HEADS: Parts = {
    '': lambda module: is_exact_type(module, BoundedTalkingHeadAttn),
    'qkv': is_linear,
    **HEADS_MIXING,
    'proj': is_linear,
    'proj_drop': is_noop,
}
