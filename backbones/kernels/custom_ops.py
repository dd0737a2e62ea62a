"""Custom operators for matmuls of tokens, which torch.compile does not look into.

On a CPU, torch passes float32 matmuls to MKL and convolutions to oneDNN. Except on Intel CPUs, MKL
uses only half of the vector width, and oneDNN all of it. So a linear layer is computed as a 1 x 1
convolution, forward and backward. torch.compile alone would choose memory formats in which these
are slow, and would recompile the gradients of depthwise convolutions for every image size.

Shapes: ``B`` images, ``N = h w`` tokens, ``C`` width.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 1024  # tokens computed at a time where that saves memory


def as_image(x: Tensor, height: int = 1) -> Tensor:
    """Return tokens ``(B, N, C)`` as a channels-last image ``(B, C, h, w)``, not copied."""
    batch, tokens, width = x.shape
    return x.contiguous().view(batch, height, tokens // height, width).permute(0, 3, 1, 2)


def as_tokens(image: Tensor) -> Tensor:
    """Return the tokens of an image; one in another memory format is copied."""
    return image.permute(0, 2, 3, 1).flatten(1, 2)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer as a convolution; ``weight`` is ``(C_out, C_in)``."""
    return as_tokens(F.conv2d(as_image(x), weight[:, :, None, None], bias))


@torch.library.custom_op('colonnade::products', mutates_args=())
def products(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply :func:`convolve`, also with weights ``(B, C_out, C_in)`` and biases ``(B, C_out)``."""
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
    """Return ``a^T b`` of each image: ``(B, N, C_a)`` and ``(B, N, C_b)`` to ``(B, C_a, C_b)``.

    For oneDNN this is the gradient of a 1 x 1 convolution's weights.
    """
    if not len(a):
        return a.new_empty(0, a.shape[2], b.shape[2])
    weight = a.new_empty(a.shape[2], b.shape[2], 1, 1)
    required = (False, True, False)
    return torch.stack([
        sum(
            convolution_gradients(as_image(rows), as_image(columns), weight, 0, required)[1]
            for rows, columns in zip(
                rows.split(BLOCK, dim=1), columns.split(BLOCK, dim=1), strict=True))
        for rows, columns in zip(a.split(1), b.split(1), strict=True)
    ])[..., 0, 0]


@outer_products.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[2], b.shape[2])


@torch.library.custom_op('colonnade::depthwise', mutates_args=())
def depthwise(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    """Apply a depthwise convolution of odd kernel size to tokens of a grid ``height`` rows high."""
    padding = weight.shape[-1] // 2
    return as_tokens(
        F.conv2d(as_image(x, height), weight, bias, padding=padding, groups=len(weight)))


@depthwise.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op('colonnade::depthwise_gradients', mutates_args=())
def depthwise_gradients(grad: Tensor, x: Tensor, weight: Tensor,
                        height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of :func:`depthwise` by ``x``, ``weight`` and ``bias``."""
    image, grad_weight, grad_bias = convolution_gradients(
        as_image(grad, height), as_image(x, height), weight, weight.shape[-1] // 2, (True, ) * 3)
    return as_tokens(image), grad_weight, grad_bias


@depthwise_gradients.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, height: int) -> tuple[Tensor, Tensor, Tensor]:
    return (torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(weight),
            weight.new_empty(weight.shape[0]))


def convolution_gradients(grad: Tensor, image: Tensor, weight: Tensor, padding: int,
                          required: tuple[bool, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``required`` gradients of a convolution by its image, weight and bias."""
    groups = image.shape[1] // weight.shape[1]
    return torch.ops.aten.convolution_backward(grad, image, weight, [len(weight)], [1, 1],
                                               [padding, padding], [1, 1], False, [0, 0], groups,
                                               required)


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.height = inputs[-1]


def _products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    grad_x = products(grad, weight.mT, None) if needs_x else None
    grad_weight = outer_products(grad, x) if needs_weight else None
    grad_bias = grad.sum(1) if needs_bias else None
    if weight.ndim == 2:
        grad_weight, grad_bias = (None if g is None else g.sum(0) for g in (grad_weight, grad_bias))
    return grad_x, grad_weight, grad_bias


def _outer_products_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    a, b = ctx.saved_tensors
    return products(b, grad, None), products(a, grad.mT, None)


def _depthwise_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *depthwise_gradients(grad, *ctx.saved_tensors, ctx.height), None


products.register_autograd(_products_backward, setup_context=_save_inputs)
outer_products.register_autograd(_outer_products_backward, setup_context=_save_inputs)
depthwise.register_autograd(_depthwise_backward, setup_context=_save_inputs)
