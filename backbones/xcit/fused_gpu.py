"""XCiT's cross-covariance attention between its two linear layers, fused for GPUs.

Forward and backward have three kernels each. The first multiplies all tokens of a head with one
another and reads each token once. The second takes the small maps that follow from it. The third
multiplies the tokens with these maps. Queries, keys and values are read where the linear layer
wrote them, and sums are taken in float32 at least.

Long images are split over programs. Their sums are added up in a fixed order, so that results are
the same in every run. Shapes: ``B`` images, ``N`` tokens, ``h`` heads, ``d`` channels of a head.

Nothing here was timed: sizes of blocks are guesses.
"""
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import cross_covariance_kernels as kernels

PROGRAMS = 256  # that read tokens at a time, if there are as many blocks of tokens


def cross_covariance(qkv: Tensor, temperature: Tensor, eps: float) -> Tensor:
    """Attention between channels of each head, without the linear layers before and behind it.

    Args:
        qkv: ``(B, N, 3, h, d)``, queries, keys and values.
        temperature: ``(h, 1, 1)``.
        eps: The norms' lower bound.

    Returns:
        ``(B, N, h d)``.
    """
    temperature = temperature.flatten().to(_sum_dtype(qkv))
    return attend(qkv.contiguous(), temperature, eps)[0].flatten(2)


@torch.library.custom_op('colonnade::cross_covariance', mutates_args=())
def attend(qkv: Tensor, temperature: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Attended values ``(B, N, h, d)``, cosines ``(B, h, d, d)``, norms ``(B, h, 2, d)``."""
    batch, tokens, _, heads, width = qkv.shape
    out, cosines, norms = _attend_fake(qkv, temperature, eps)
    if not out.numel():
        return out, cosines, norms
    query, key, value = qkv.unbind(2)
    options = _options(qkv)
    with torch.cuda.device_of(qkv):
        products, squares = _products(query, key, options, norms=True)
        attention = torch.empty_like(cosines, dtype=qkv.dtype)
        kernels.attention_kernel[heads, batch](products, squares, temperature, attention, cosines,
                                               norms, products.shape[2], eps, **_of_maps(options))
        grid = (triton.cdiv(tokens, options['BLOCK']), heads, batch)
        kernels.values_kernel[grid](value, attention, out, tokens, value.stride(1), **options)
    return out, cosines, norms


@attend.register_fake
def _attend_fake(qkv: Tensor, temperature: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    batch, tokens, _, heads, width = qkv.shape
    out = qkv.new_empty(batch, tokens, heads, width)
    cosines = temperature.new_empty(batch, heads, width, width)
    return out, cosines, temperature.new_empty(batch, heads, 2, width)


@torch.library.custom_op('colonnade::cross_covariance_gradients', mutates_args=())
def gradients(grad: Tensor, qkv: Tensor, temperature: Tensor, cosines: Tensor, norms: Tensor,
              eps: float) -> tuple[Tensor, Tensor]:
    """Of :func:`attend`, by ``qkv`` and by the temperature of each image ``(B, h)``."""
    batch, tokens, _, heads, width = qkv.shape
    grad_qkv, grad_temperature = _gradients_fake(grad, qkv, temperature, cosines, norms, eps)
    if not grad_qkv.numel():
        return grad_qkv, grad_temperature.zero_()
    options = _options(qkv)
    with torch.cuda.device_of(qkv):
        products, _ = _products(grad, qkv.select(2, 2), options, norms=False)
        attention = torch.empty_like(cosines, dtype=qkv.dtype)
        matrix, along = torch.empty_like(attention), torch.empty_like(norms)
        scale = torch.empty_like(grad_temperature)
        kernels.map_gradients_kernel[heads, batch](products, cosines, norms, temperature, attention,
                                                   matrix, scale, along, grad_temperature,
                                                   products.shape[2], eps, **_of_maps(options))
        grid = (triton.cdiv(tokens, options['BLOCK']), heads, batch)
        kernels.token_gradients_kernel[grid](qkv, grad, attention, matrix, scale, along, grad_qkv,
                                             tokens, **options)
    return grad_qkv, grad_temperature


@gradients.register_fake
def _gradients_fake(grad: Tensor, qkv: Tensor, temperature: Tensor, cosines: Tensor, norms: Tensor,
                    eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), temperature.new_empty(qkv.shape[0], qkv.shape[3])


def _products(a: Tensor, b: Tensor, options: dict[str, Any], *,
              norms: bool) -> tuple[Tensor, Tensor]:
    """Sums of chunks of tokens: ``(B, h, parts, d, d)``, and of squares ``(B, h, parts, 2, d)``."""
    batch, tokens, heads, width = a.shape
    blocks = triton.cdiv(tokens, options['BLOCK'])
    chunk = triton.cdiv(blocks, min(blocks, max(PROGRAMS // (batch * heads), 1)))
    parts = triton.cdiv(blocks, chunk)
    dtype = _sum_dtype(a)
    products = a.new_empty(batch, heads, parts, width, width, dtype=dtype)
    squares = a.new_empty(batch, heads, parts, 2, width, dtype=dtype)
    kernels.products_kernel[parts, heads, batch](
        a,
        b,
        products,
        squares,
        tokens,
        a.stride(1),
        b.stride(1),
        chunk * options['BLOCK'],
        NORMS=norms,
        **options)
    return products, squares


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _options(qkv: Tensor) -> dict[str, Any]:
    """Constants of the kernels that read tokens."""
    width = qkv.shape[4]
    padded = max(triton.next_power_of_2(width), 16)  # products need 16
    return dict(
        SUM=tl.float64 if qkv.dtype == torch.float64 else tl.float32,
        BLOCK=64 if padded <= 64 else 32,
        WIDTH=width,
        PADDED=padded,
        num_warps=4 if padded <= 64 else 8)


def _of_maps(options: dict[str, Any]) -> dict[str, Any]:
    """The same for those that do not."""
    return {name: value for name, value in options.items() if name != 'BLOCK'}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:2], *output[1:])
    ctx.eps = inputs[2]


def _backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_qkv, grad_temperature = gradients(grad.contiguous(), *ctx.saved_tensors, ctx.eps)
    return grad_qkv, grad_temperature.sum(0), None


attend.register_autograd(_backward, setup_context=_keep)
