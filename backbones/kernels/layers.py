"""Layers of tokens, computed the fast way of the device and storing little for gradients.

Shapes: ``B`` images, ``N`` tokens, ``C`` width. Products of matrices go to :mod:`.custom_ops` where
oneDNN is the faster one.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from .custom_ops import BLOCK, as_image, as_tokens, convolve, depthwise, outer_products, products
from .devices import should_use_cpu_forms
from .fast_path import (MLP, add_branch, find_modified_layer, is_drop_path, is_fast_path_disabled,
                        is_gated_mlp, is_plain, is_token_norm)
from .matmul_backend import onednn_is_faster
from .packed import PackedDepthwise, PackedLinear
from .precision import autocast_dtype, product_dtype, widened


def suits_convolution(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's convolution is the faster product, of float32 (never during export)."""
    return (should_use_cpu_forms(x) and x.dtype == weight.dtype == torch.float32
            and autocast_dtype(x) is None and not torch.compiler.is_exporting()
            and onednn_is_faster())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer: ``(B, N, C_in)`` to ``(B, N, C_out)``; ``weight`` is ``(C_out, C_in)``."""
    if not suits_convolution(x, weight):
        return F.linear(x, weight, bias)
    return (products if torch.compiler.is_compiling() else convolve)(x, weight, bias)


def call_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer(x)``, by :func:`linear` if its weights are all there is to it."""
    if is_plain(layer, nn.Linear) and not is_fast_path_disabled():
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def linear_gelu(layer: nn.Linear | PackedLinear, x: Tensor) -> Tensor:
    """GELU of a linear layer that is as it was built, ``(B, N, C_in)`` to ``(B, N, C_out)``."""
    if isinstance(layer, PackedLinear):
        return layer(x, gelu=True)
    return gelu(linear(x, layer.weight, layer.bias))


def linear_per_image(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As :func:`linear`, with weights ``(B, C_out, C_in)`` and biases ``(B, C_out)`` per image."""
    if not suits_convolution(x, weight):
        if bias is None:
            return x @ weight.mT
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    return products(x, weight, bias)


def gram(x: Tensor) -> Tensor:
    """``x^T x`` of each image, widened: tokens ``(B, N, C)`` to ``(B, C, C)``."""
    if suits_convolution(x, x):
        return outer_products(x, x)
    x = widened(x)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return x.mT @ x
    half, out = x.shape[2] // 2, x.new_empty(len(x), x.shape[2], x.shape[2])
    for image, tokens in zip(out, x, strict=True):  # the lower left is the upper right
        torch.mm(tokens[:, :half].T, tokens, out=image[:half])
        torch.mm(tokens[:, half:].T, tokens[:, half:], out=image[half:, half:])
        image[half:, :half] = image[:half, half:].T
    return out


def call_depthwise(layer: nn.Conv2d | PackedDepthwise, x: Tensor, height: int) -> Tensor:
    """A layer that is as it was built: tokens ``(B, N, C)`` of a grid to the same shape."""
    if isinstance(layer, PackedDepthwise):
        return as_tokens(layer(as_image(x, height)))
    return depthwise_convolution(x, layer.weight, layer.bias, height)


def depthwise_convolution(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    """See :func:`.custom_ops.depthwise`, which torch.compile takes, and autocast does not know."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return depthwise(*_under_autocast(x, weight, bias), height)
    image, padding = as_image(x, height), weight.shape[-1] // 2
    return as_tokens(F.conv2d(image, weight, bias, padding=padding, groups=len(weight)))


def add(x: Tensor, branch: Tensor, scale: Tensor | None = None) -> Tensor:
    """``x + scale * branch``; on a CPU without gradients ``branch`` is overwritten.

    Args:
        x: Tokens ``(B, N, C)``.
        branch: The same shape, of lower precision under autocast.
        scale: ``(C)``; ``None`` is 1.
    """
    if torch.is_grad_enabled() or not should_use_cpu_forms(x):
        return x + (branch if scale is None else branch * scale)
    branch = branch.to(x.dtype)
    return branch.add_(x) if scale is None else torch.addcmul(x, branch, scale)


def gelu(x: Tensor) -> Tensor:
    """GELU of a tensor that nobody else needs: without gradients it is overwritten."""
    if torch.is_grad_enabled() and x.requires_grad:
        return F.gelu(x)
    return torch.ops.aten.gelu_(x)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``linear(gelu(x), weight, bias)``; GELU is computed anew for the gradients, not stored."""
    if not stores_gradients(x):
        return linear(gelu(x), weight, bias)
    if suits_convolution(x, weight):
        image = gelu_convolution(as_image(x), weight[:, :, None, None], bias)
        return as_tokens(image)
    return _GeluLinear.apply(*_under_autocast(x, weight, bias))


def gelu_convolution(x: Tensor,
                     weight: Tensor,
                     bias: Tensor | None,
                     stride: int = 1,
                     padding: int = 0) -> Tensor:
    """``conv2d(gelu(x), weight, bias, stride, padding)``, as :func:`gelu_linear`."""
    if not stores_gradients(x):
        return F.conv2d(gelu(x), weight, bias, stride, padding)
    return _GeluConvolution.apply(*_under_autocast(x, weight, bias), stride, padding)


def stores_gradients(x: Tensor) -> bool:
    """Whether autograd would store what is computed from ``x``; compilers choose themselves."""
    return torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()


def _under_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """In the precision of autocast, which does not look into functions of our own."""
    dtype = autocast_dtype(tensors[0])
    return [tensor if dtype is None or tensor is None else tensor.to(dtype) for tensor in tensors]


class _GeluConvolution(Function):
    """See :func:`gelu_convolution`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int,
                padding: int) -> Tensor:
        """``(B, C_in, H, W)`` to ``(B, C_out, h, w)``."""
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.stride, ctx.padding = bias is not None, stride, padding
        return F.conv2d(F.gelu(x), weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of ``x``, ``weight`` and ``bias``."""
        x, weight = ctx.saved_tensors
        grad_activated, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad, F.gelu(x), weight, [len(weight)] if ctx.has_bias else None, [ctx.stride] * 2,
            [ctx.padding] * 2, [1, 1], False, [0, 0], 1, [True, True, ctx.has_bias])
        return (torch.ops.aten.gelu_backward(grad_activated, x), grad_weight, grad_bias, None, None)


class _GeluLinear(Function):
    """See :func:`gelu_linear`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """``(B, N, C_in)`` to ``(B, N, C_out)``."""
        ctx.save_for_backward(x, weight)
        return F.linear(F.gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of ``x``, ``weight`` and ``bias``."""
        x, weight = ctx.saved_tensors
        grad_weight = grad.flatten(0, 1).mT @ F.gelu(x).flatten(0, 1)
        grad_x = torch.ops.aten.gelu_backward(grad @ weight, x)
        return grad_x, grad_weight, grad.sum((0, 1))


def scaled(scale: Tensor | None, layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer whose output channels are multiplied by ``scale`` ``(C)``."""
    if scale is None:
        return layer.weight, layer.bias
    return layer.weight * scale.view(-1, *[1] * (layer.weight.ndim - 1)), layer.bias * scale


def can_hold_scale(dtype: torch.dtype) -> bool:
    """Return True if weights times LayerScale keep their digits.

    The smallest normal number of float16 is 6e-5. Deep backbones start with a LayerScale of 1e-5 or
    1e-6, beside which their weights are lost there.
    """
    return dtype != torch.float16


def fold_if_exact(scale: Tensor | None, layer: nn.Linear | nn.Conv2d,
                  x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return weight and bias of a layer with LayerScale in them, and None.

    Where float16 would lose it, and on accelerators, return the layer's own, and ``scale`` to
    multiply its output with.

    Args:
        scale: LayerScale ``(C)``. ``None`` is 1.
        layer: Layer before LayerScale.
        x: Tokens, whose products have the precision of the layer's.
    """
    if should_use_cpu_forms(x) and can_hold_scale(product_dtype(x)):
        return *scaled(scale, layer), None
    return layer.weight, layer.bias, scale


def feed_forward(x: Tensor,
                 norm: nn.Module | None,
                 mlp: nn.Module,
                 scale: Tensor | None,
                 drop_path: nn.Module,
                 given: Tensor | None = None) -> Tensor:
    """``x + drop_path(scale * mlp(norm(given)))``; without gradients ``x`` may be overwritten.

    Layers that are not as they were built are called, see :mod:`.fast_path`; an accelerator calls
    all. On a CPU with gradients, LayerScale is folded into the second layer's weights, so that its
    output need not be stored, but for products of float16. Without, blocks of tokens go through one
    after the other: the hidden layer of all tokens never exists.

    Args:
        x: Tokens ``(B, N, C)``.
        norm: What comes before; ``None`` is nothing.
        mlp: timm's module with ``fc1``, GELU and ``fc2``, or with gates.
        scale: LayerScale ``(C)``; ``None`` is 1.
        drop_path: Stochastic depth.
        given: What the branch gets, tokens of the same shape; ``None`` is ``x``.
    """
    given = x if given is None else given
    if not should_use_cpu_forms(x):
        return add_branch(x, mlp(_normalised(given, norm)), scale, drop_path)
    beside = is_drop_path(drop_path) and (norm is None or is_token_norm(norm))
    known = beside and find_modified_layer(mlp, MLP) is None
    whole = torch.is_grad_enabled() or torch.compiler.is_compiling() or drop_path.training
    if known and whole:
        hidden = linear(_normalised(given, norm), mlp.fc1.weight, mlp.fc1.bias)
        weight, bias, scale = fold_if_exact(scale, mlp.fc2, hidden)
        return add(x, drop_path(gelu_linear(hidden, weight, bias)), scale)
    if whole or not (known or beside and is_gated_mlp(mlp)):
        return add_branch(x, mlp(_normalised(given, norm)), scale, drop_path)
    if known and scale is None and x.shape[1] <= BLOCK and isinstance(mlp.fc2, PackedLinear):
        return mlp.fc2.forward_add(x, linear_gelu(mlp.fc1, _normalised(given, norm)))
    for tokens, source in zip(x.split(BLOCK, dim=1), given.split(BLOCK, dim=1), strict=True):
        source = _normalised(source, norm)
        out = call_linear(mlp.fc2, linear_gelu(mlp.fc1, source)) if known else mlp(source)
        out = out.to(x.dtype)  # sums of two precisions take several times as long
        tokens.add_(out) if scale is None else tokens.addcmul_(out, scale)
    return x


def _normalised(x: Tensor, norm: nn.Module | None) -> Tensor:
    return x if norm is None else norm(x)
