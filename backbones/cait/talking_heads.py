"""Talking-heads attention in bounded memory (Shazeer et al., arXiv 2003.02436; CaiT uses it).

The heads' maps are mixed before and after the softmax. Both act on each pair of query and key, so
blocks of queries can be computed one after the other. No more than one block's maps exist at a
time. Shapes: ``B`` images, ``h`` heads, ``N`` tokens, ``d`` channels of a head, ``C = h d``.
"""
from __future__ import annotations

from typing import Any

import torch
from timm.models.cait import TalkingHeadAttn
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ..kernels.devices import should_use_cpu_forms
from ..kernels.fast_path import Parts, find_modified_layer, is_linear, is_noop, is_plain
from ..kernels.layers import call_linear

MIB = 2**20
#: MiB of one block's map. A CPU is fastest where the maps stay in its cache.
CPU_BUDGET, ACCELERATOR_BUDGET = 4., 64.


def mix_heads(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Maps ``(B, h, n, N)`` to as many linear combinations of them.

    Args:
        maps: A map per head.
        weight: ``(h, h)``, output by input.
        bias: ``(h,)``.
    """
    flat, weight = maps.flatten(2), weight.expand(len(maps), -1, -1)
    mixed = weight @ flat if bias is None else torch.baddbmm(bias[:, None], weight, flat)
    return mixed.view_as(maps)


def mixing_gradients(grad: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Of :func:`mix_heads`, by its weight ``(h, h)`` and its bias ``(h,)``."""
    return (grad.flatten(2) @ maps.flatten(2).transpose(1, 2)).sum(0), grad.sum((0, 2, 3))


def attend(query: Tensor, key: Tensor, value: Tensor, weight_l: Tensor, bias_l: Tensor,
           weight_w: Tensor, bias_w: Tensor) -> Tensor:
    """Return values attended by ``n`` queries ``(B, h, n, d)``, whose maps exist together."""
    maps = query @ key.transpose(-2, -1)  # (B, h, n, N)
    # the dtype keeps autocast from widening them
    maps = mix_heads(maps, weight_l, bias_l).softmax(dim=-1, dtype=maps.dtype)
    return mix_heads(maps, weight_w, bias_w) @ value


class TalkingHeads(Function):
    """Attention and its gradients for blocks of queries; see :func:`talking_heads`.

    Nothing that is larger than the arguments lives longer than a block. While a block's maps exist,
    nothing else is allocated, so that those of the next block take the same memory.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, weight_l: Tensor,
                bias_l: Tensor, weight_w: Tensor, bias_w: Tensor, block_size: int) -> Tensor:
        """``(B, N, h, d)``; the arguments are saved, the maps are not."""
        ctx.save_for_backward(query, key, value, weight_l, bias_l, weight_w, bias_w)
        ctx.block_size = block_size
        batch, heads, tokens, width = query.shape
        attended = query.new_empty(batch, tokens, heads, width)
        for begin in range(0, tokens, block_size):
            rows = slice(begin, begin + block_size)
            found = attend(query[:, :, rows], key, value, weight_l, bias_l, weight_w, bias_w)
            attended[:, rows] = found.transpose(1, 2)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of all arguments but the block size, from that of ``(B, N, h, d)``."""
        query, key, value, weight_l, bias_l, weight_w, bias_w = ctx.saved_tensors
        grad_query = torch.empty_like(query)
        # sums over blocks, in float32 also where the rest is of half precision
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
            # of the softmax
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


@torch.compiler.disable  # a compiler would write out every block
def talking_heads(query: Tensor, key: Tensor, value: Tensor, mixing: tuple[Tensor, ...], *,
                  block_size: int) -> Tensor:
    """Talking-heads attention for blocks of queries; exact for every block size.

    With gradients, each block's maps are computed again in the backward pass instead of stored:
    memory is that of one block, forward and backward, ``O(B h block_size N)``.

    Args:
        query: ``(B, h, N, d)``, scaled.
        key: ``(B, h, N, d)``.
        value: ``(B, h, N, d)``.
        mixing: Weight and bias that mix the heads' logits, and those that mix softmax weights.
        block_size: Queries of a block.

    Returns:
        ``(B, N, h, d)``.
    """
    return TalkingHeads.apply(query, key, value, *mixing, block_size)


class BoundedTalkingHeadAttn(TalkingHeadAttn):
    """timm's talking-heads attention, with the same parameters, by blocks of queries.

    Attributes:
        block_size: Queries of a block; ``None`` takes as many as ``budget`` allows.
        budget: MiB of one map ``(B, h, block_size, N)``, of which two exist at a time in evaluation
            and some five in training; ``None`` is 4 on a CPU and 64 elsewhere. Where an accelerator
            needs one block only, each layer stores its maps for the gradients, as timm's does.
    """
    block_size: int | None = None
    budget: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``.

        By timm's own if a layer that mixes heads must be called, and in exports, which would write
        out the blocks. That one needs memory for all pairs of tokens.
        """
        if torch.compiler.is_exporting() or find_modified_layer(self, HEADS_MIXING) is not None:
            return super().forward(x)
        qkv = call_linear(self.qkv, x).unflatten(2, (3, self.num_heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each (B, h, N, d)
        query = query * self.scale
        mixing = tuple(
            x.to(query.dtype) for layer in (self.proj_l, self.proj_w)
            for x in (layer.weight, layer.bias))
        block_size = self.block_size or self._affordable_block(query)
        if should_use_cpu_forms(query) or block_size < query.shape[2]:
            attended = talking_heads(query, key, value, mixing, block_size=block_size)
        else:
            attended = attend(query, key, value, *mixing).transpose(1, 2)
        out = call_linear(self.proj, attended.flatten(2))
        return out if is_noop(self.proj_drop) else self.proj_drop(out)

    def _affordable_block(self, query: Tensor) -> int:
        batch, heads, tokens, _ = query.shape
        budget = self.budget or (CPU_BUDGET if should_use_cpu_forms(query) else ACCELERATOR_BUDGET)
        row = batch * heads * tokens * query.element_size()  # bytes of a query's map
        return min(max(int(budget * MIB / max(row, 1)), 1), tokens)


#: what must be as it was built for blocks of queries
HEADS_MIXING: Parts = {'proj_l': is_linear, 'attn_drop': is_noop, 'proj_w': is_linear}
TALKING_HEADS: Parts = {
    '': lambda module: is_plain(module, BoundedTalkingHeadAttn),
    'qkv': is_linear,
    **HEADS_MIXING,
    'proj': is_linear,
    'proj_drop': is_noop,
}
