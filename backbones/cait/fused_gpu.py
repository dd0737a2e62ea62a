"""Talking-heads attention fused for GPUs: no map of attention is written to memory.

Forward and backward compute blocks of the maps of all heads, twice, and keep two numbers per head
and query. Sums are taken in float32 at least and in a fixed order. Shapes: ``B`` images, ``N``
tokens, ``h`` heads, ``d`` channels of a head.

Nothing here was timed: sizes of blocks are guesses.
"""
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import talking_heads_kernels as kernels


def fused_talking_heads(qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor,
                        bias_w: Tensor, scale: float) -> Tensor:
    """Talking-heads attention without the linear layers before and behind it.

    Args:
        qkv: ``(B, N, 3, h, d)``, queries, keys and values.
        weight_l: ``(h, h)``, mixes logits.
        bias_l: ``(h,)``.
        weight_w: ``(h, h)``, mixes softmax weights.
        bias_w: ``(h,)``.
        scale: Of the queries.

    Returns:
        ``(B, N, h, d)``.
    """
    dtype = torch.promote_types(qkv.dtype, torch.float32)
    mixing = (x.to(dtype).contiguous() for x in (weight_l, bias_l, weight_w, bias_w))
    return attend(qkv.contiguous(), *mixing, scale)[0]


@torch.library.custom_op('colonnade::talking_heads', mutates_args=())
def attend(qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor, bias_w: Tensor,
           scale: float) -> tuple[Tensor, Tensor]:
    """Attended values ``(B, N, h, d)``, and logarithms of the softmax's sums ``(B, h, N)``."""
    out, sums = _attend_fake(qkv, weight_l, bias_l, weight_w, bias_w, scale)
    if out.numel():
        grid, options = _launch(qkv)
        with torch.cuda.device_of(qkv):
            kernels.forward_kernel[grid](qkv, weight_l, bias_l, weight_w, bias_w, out, sums,
                                         qkv.shape[1], scale, **options)
    return out, sums


@attend.register_fake
def _attend_fake(qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor, bias_w: Tensor,
                 scale: float) -> tuple[Tensor, Tensor]:
    batch, tokens, _, heads, width = qkv.shape
    return qkv.new_empty(batch, tokens, heads, width), weight_l.new_empty(batch, heads, tokens)


@torch.library.custom_op('colonnade::talking_heads_gradients', mutates_args=())
def gradients(grad: Tensor, qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor,
              bias_w: Tensor, sums: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Of :func:`attend`, by ``qkv``, and by what mixes logits and weights ``(2, h + 1, h)``.

    The last row of each of the two is that of the bias.
    """
    batch, tokens, _, heads, _ = qkv.shape
    grad_qkv, grad_mixing = _gradients_fake(grad, qkv, weight_l, bias_l, weight_w, bias_w, sums,
                                            scale)
    if not grad_qkv.numel():
        return grad_qkv, grad_mixing.zero_()
    (blocks, _), options = _launch(qkv)
    partial = grad_mixing.new_empty(batch * blocks, *grad_mixing.shape)
    inner = torch.empty_like(sums)
    with torch.cuda.device_of(qkv):
        kernels.query_gradients_kernel[blocks,
                                       batch](qkv, grad, weight_l, bias_l, weight_w, sums, inner,
                                              grad_qkv, partial, tokens, scale, **options)
        kernels.key_gradients_kernel[triton.cdiv(tokens, options['M']),
                                     batch](qkv, grad, weight_l, bias_l, weight_w, bias_w, sums,
                                            inner, grad_qkv, tokens, scale, **options)
    return grad_qkv, partial.sum(0)


@gradients.register_fake
def _gradients_fake(grad: Tensor, qkv: Tensor, weight_l: Tensor, bias_l: Tensor, weight_w: Tensor,
                    bias_w: Tensor, sums: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    heads = qkv.shape[3]
    return torch.empty_like(qkv), weight_l.new_empty(2, heads + 1, heads)


def _launch(qkv: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of blocks of queries, and the constants of the kernels."""
    batch, tokens, _, heads, width = qkv.shape
    all_heads = 8 if heads <= 8 else 16  # products need 8
    options = dict(
        SUM=tl.float64 if qkv.dtype == torch.float64 else tl.float32,
        N=16,
        M=16,
        HEADS=heads,
        ALL=all_heads,
        WIDTH=width,
        PADDED=max(triton.next_power_of_2(width), 16),
        num_warps=all_heads // 2,
        num_stages=1)
    return (triton.cdiv(tokens, options['N']), batch), options


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.scale = inputs[5]


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_qkv, mixing = gradients(grad.contiguous(), *ctx.saved_tensors, ctx.scale)
    (weight_l, bias_l), (weight_w, bias_w) = (m.split((len(m) - 1, 1)) for m in mixing)
    return grad_qkv, weight_l, bias_l[0], weight_w, bias_w[0], None


attend.register_autograd(_backward, setup_context=_keep)
