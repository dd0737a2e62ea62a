"""Products of tokens as operators that torch.compile calls as they are.

On a CPU, torch gives matrix products of float32 to MKL and convolutions to oneDNN. On processors
of other makers, MKL leaves the wider half of the vector units unused; oneDNN does not. A linear
layer is a convolution with a 1 x 1 kernel, so here it is computed as one, forward and backward.

Left to itself, torch.compile would choose orders of memory in which oneDNN's convolutions are slow
and, for gradients, compile depthwise convolutions anew for every size of image.

Shapes: ``B`` images, ``N = h w`` tokens, ``C`` width.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 1024  # tokens that are computed together where that saves memory


def as_image(x: Tensor, height: int = 1) -> Tensor:
    """Tokens ``(B, N, C)`` as an image ``(B, C, h, w)`` in channels-last order, not copied."""
    batch, tokens, width = x.shape
    return x.contiguous().view(batch, height, tokens // height, width).permute(0, 3, 1, 2)


def as_tokens(image: Tensor) -> Tensor:
    """The inverse of :func:`as_image`; an image in another order is copied."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear layer as a convolution; ``weight`` is ``(C_out, C_in)``."""
    return as_tokens(F.conv2d(as_image(x), weight[:, :, None, None], bias))


@torch.library.custom_op('colonnade::products', mutates_args=())
def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """:func:`convolve`, also with weights ``(B, C_out, C_in)`` and biases ``(B, C_out)``."""
    if weight.ndim == 2:
        return convolve(x, weight, bias)
    if not len(x):
        return x.new_empty(*x.shape[:2], weight.shape[1])
    biases = [None] * len(x) if bias is None else bias
    images = [convolve(*row) for row in zip(x.split(1), weight, biases, strict=True)]
    return images[0] if len(images) == 1 else torch.cat(images)


@products.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[-2])


@torch.library.custom_op('colonnade::outer_products', mutates_args=())
def outer_products(a: Tensor, b: Tensor) -> Tensor:
    """``a^T b`` of each image: ``(B, N, C_a)`` and ``(B, N, C_b)`` to ``(B, C_a, C_b)``.

    To oneDNN that is the gradient of a 1 x 1 convolution's weights.
    """
    if not len(a):
        return a.new_empty(0, a.shape[2], b.shape[2])
    weight = a.new_empty(a.shape[2], b.shape[2], 1, 1)
    wanted = (False, True, False)
    return torch.stack([
        sum(
            convolution_gradients(as_image(rows), as_image(columns), weight, 0, wanted)[1]
            for rows, columns in zip(
                rows.split(BLOCK, dim=1), columns.split(BLOCK, dim=1), strict=True))
        for rows, columns in zip(a.split(1), b.split(1), strict=True)
    ])[..., 0, 0]


@outer_products.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[2], b.shape[2])


@torch.library.custom_op('colonnade::depthwise', mutates_args=())
def depthwise(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    """A depthwise convolution that keeps the grid: ``(B, N, C)`` to ``(B, N, C)``.

    Args:
        x: Tokens of a grid.
        weight: ``(C, 1, k, k)``, k odd.
        bias: ``(C)``.
        height: Of the grid.
    """
    padding = weight.shape[-1] // 2
    return as_tokens(
        F.conv2d(as_image(x, height), weight, bias, padding=padding, groups=len(weight)))


@depthwise.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op('colonnade::depthwise_gradients', mutates_args=())
def depthwise_gradients(grad: Tensor, x: Tensor, weight: Tensor,
                        height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of :func:`depthwise`, by ``x``, ``weight`` and ``bias``."""
    image, grad_weight, grad_bias = convolution_gradients(
        as_image(grad, height), as_image(x, height), weight, weight.shape[-1] // 2, (True, ) * 3)
    return as_tokens(image), grad_weight, grad_bias


@depthwise_gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor]:
    return (torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight),
            weight.new_empty(weight.shape[0]))


def convolution_gradients(grad: Tensor, image: Tensor, weight: Tensor, padding: int,
                          wanted: tuple[bool, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Those of an image, the weights and the biases of a convolution of stride 1 that are wanted.

    Weights of one input channel make it depthwise.
    """
    groups = image.shape[1] // weight.shape[1]
    return torch.ops.aten.convolution_backward(grad, image, weight, [len(weight)], [1, 1],
                                               [padding, padding], [1, 1], False, [0, 0], groups,
                                               wanted)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.height = inputs[-1]


def _products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants_x, wants_weight, wants_bias = ctx.needs_input_grad
    grad_x = products(grad, weight.mT, None) if wants_x else None
    grad_weight = outer_products(grad, x) if wants_weight else None
    grad_bias = grad.sum(1) if wants_bias else None
    if weight.ndim == 2:
        grad_weight, grad_bias = (None if g is None else g.sum(0) for g in (grad_weight, grad_bias))
    return grad_x, grad_weight, grad_bias


def _outer_products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return products(b, grad, None), products(a, grad.mT, None)


def _depthwise_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *depthwise_gradients(grad, *ctx.saved_tensors, ctx.height), None


products.register_autograd(_products_backward, setup_context=_keep_inputs)
outer_products.register_autograd(_outer_products_backward, setup_context=_keep_inputs)
depthwise.register_autograd(_depthwise_backward, setup_context=_keep_inputs)
