"""Layers of tokens, computed the fast way of the device with little stored for gradients.

Shapes: ``B`` images, ``N`` tokens, ``C`` width. Matmuls are those of :mod:`.custom_ops` where
oneDNN is faster.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from .custom_ops import BLOCK, as_image, as_tokens, convolve, depthwise, outer_products, products
from .devices import get_autocast_dtype, get_matmul_dtype, should_use_cpu_forms
from .fast_path import (MLP, add_branch, find_modified_layer, is_drop_path, is_exact_type,
                        is_fast_path_disabled, is_gated_mlp, is_token_norm)
from .matmul_backend import is_onednn_faster
from .packed import PackedDepthwise, PackedLinear

MIN_RERUN = 350_000  # elements from which on rerunning a layer saves memory worth its time


def can_use_convolution(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN's convolution is the faster matmul in float32 (never in exports)."""
    return (should_use_cpu_forms(x) and x.dtype == weight.dtype == torch.float32
            and get_autocast_dtype(x) is None and not torch.compiler.is_exporting()
            and is_onednn_faster())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer of weight ``(C_out, C_in)`` to ``(B, N, C_in)``."""
    if not can_use_convolution(x, weight):
        return F.linear(x, weight, bias)
    return (products if torch.compiler.is_compiling() else convolve)(x, weight, bias)


def call_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return ``layer(x)``, by :func:`linear` if the layer is unmodified."""
    if is_exact_type(layer, nn.Linear) and not is_fast_path_disabled():
        return linear(x, layer.weight, layer.bias)
    return layer(x)


def linear_gelu(layer: nn.Linear | PackedLinear, x: Tensor) -> Tensor:
    """Apply an unmodified linear layer and GELU to ``(B, N, C_in)``."""
    if isinstance(layer, PackedLinear):
        return layer(x, gelu=True)
    return gelu(linear(x, layer.weight, layer.bias))


def linear_per_image(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply :func:`linear` with a weight ``(B, C_out, C_in)`` and bias ``(B, C_out)`` per image."""
    if not can_use_convolution(x, weight):
        if bias is None:
            return x @ weight.mT
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    return products(x, weight, bias)


def gram(x: Tensor, shift: Tensor | None = None) -> Tensor:
    """Return ``z^T z`` ``(B, C, C)`` of each image for ``z = x - shift``.

    Without gradients, blocks of tokens are shifted in turn, so that ``z`` of all tokens never
    exists.

    Args:
        x: Tokens ``(B, N, C)``, at least float32.
        shift: Subtracted from all tokens, ``(B, 1, C)``, or None for nothing.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _Gram.apply(x if shift is None else x - shift)
    return _sum_outer_products(x, shift)


def _sum_outer_products(x: Tensor, shift: Tensor | None = None) -> Tensor:
    """Compute :func:`gram`."""
    if torch.compiler.is_compiling() or can_use_convolution(x, x):
        z = x if shift is None else x - shift
        return outer_products(z, z) if can_use_convolution(z, z) else z.mT @ z
    batch, _, width = x.shape
    half, out = width // 2, x.new_zeros(batch, width, width)
    for block in x.split(BLOCK, dim=1):
        for image, z in zip(out, block if shift is None else block - shift, strict=True):
            image[:half].addmm_(z[:, :half].T, z)
            image[half:, half:].addmm_(z[:, half:].T, z[:, half:])
    out[:, half:, :half] = out[:, :half, half:].mT  # symmetric
    return out


class _Gram(Function):
    """Autograd function of :func:`gram`: its gradient is one matmul, since it is symmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _sum_outer_products(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, = ctx.saved_tensors
        return linear_per_image(x, grad + grad.mT)


def call_depthwise(layer: nn.Conv2d | PackedDepthwise, x: Tensor, height: int) -> Tensor:
    """Apply an unmodified depthwise layer to tokens ``(B, N, C)`` of a grid."""
    if isinstance(layer, PackedDepthwise):
        return as_tokens(layer(as_image(x, height)))
    return depthwise_convolution(x, layer.weight, layer.bias, height)


def depthwise_convolution(x: Tensor, weight: Tensor, bias: Tensor, height: int) -> Tensor:
    """Apply :func:`.custom_ops.depthwise`, as an operator where torch.compile needs one."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return depthwise(*_cast_for_autocast(x, weight, bias), height)
    image, padding = as_image(x, height), weight.shape[-1] // 2
    return as_tokens(F.conv2d(image, weight, bias, padding=padding, groups=len(weight)))


def add(x: Tensor, branch: Tensor, scale: Tensor | None = None) -> Tensor:
    """Return ``x + scale * branch``; on a CPU without gradients ``branch`` is overwritten."""
    if torch.is_grad_enabled() or not should_use_cpu_forms(x):
        return x + (branch if scale is None else branch * scale)
    branch = branch.to(x.dtype)
    return branch.add_(x) if scale is None else torch.addcmul(x, branch, scale)


def gelu(x: Tensor) -> Tensor:
    """Return GELU of a tensor, which is overwritten without gradients."""
    if torch.is_grad_enabled() and x.requires_grad:
        return F.gelu(x)
    return torch.ops.aten.gelu_(x)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``linear(gelu(x), weight, bias)``; a large GELU is rerun for gradients, not stored."""
    if not should_rerun(x):
        return linear(gelu(x), weight, bias)
    if can_use_convolution(x, weight):
        return as_tokens(gelu_convolution(as_image(x), weight[:, :, None, None], bias))
    return _GeluLinear.apply(*_cast_for_autocast(x, weight, bias))


def gelu_convolution(x: Tensor,
                     weight: Tensor,
                     bias: Tensor | None,
                     stride: int = 1,
                     padding: int = 0) -> Tensor:
    """Return ``conv2d(gelu(x), weight, bias, stride, padding)``, as :func:`gelu_linear` does."""
    if not should_rerun(x):
        return F.conv2d(gelu(x), weight, bias, stride, padding)
    return _GeluConvolution.apply(*_cast_for_autocast(x, weight, bias), stride, padding)


def should_store_gradients(x: Tensor) -> bool:
    """Return True if autograd stores what is computed from ``x``; compilers choose themselves."""
    return torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_compiling()


def should_rerun(x: Tensor) -> bool:
    """Return True if ``x`` is so large that layers rerun in the backward pass to store only it."""
    return should_store_gradients(x) and x.numel() >= MIN_RERUN


def _cast_for_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Cast tensors to the type of autocast, which does not look into custom functions."""
    dtype = get_autocast_dtype(tensors[0])
    return [tensor if dtype is None or tensor is None else tensor.to(dtype) for tensor in tensors]


class _GeluConvolution(Function):
    """Autograd function of :func:`gelu_convolution`, which stores its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: int,
                padding: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.stride, ctx.padding = bias is not None, stride, padding
        return F.conv2d(F.gelu(x), weight, bias, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_activated, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad, F.gelu(x), weight, [len(weight)] if ctx.has_bias else None, [ctx.stride] * 2,
            [ctx.padding] * 2, [1, 1], False, [0, 0], 1, [True, True, ctx.has_bias])
        return (torch.ops.aten.gelu_backward(grad_activated, x), grad_weight, grad_bias, None, None)


class _GeluLinear(Function):
    """Autograd function of :func:`gelu_linear`, which stores its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(F.gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad_weight = grad.flatten(0, 1).mT @ F.gelu(x).flatten(0, 1)
        grad_x = torch.ops.aten.gelu_backward(grad @ weight, x)
        return grad_x, grad_weight, grad.sum((0, 1))


def scale_layer(scale: Tensor, layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a layer whose outputs are multiplied by ``scale`` ``(C)``."""
    return layer.weight * scale.view(-1, *[1] * (layer.weight.ndim - 1)), layer.bias * scale


def can_hold_scale(dtype: torch.dtype) -> bool:
    """Return True if weights times LayerScale keep their digits.

    The smallest normal float16 is 6e-5. Deep backbones start with a LayerScale of 1e-5 or 1e-6.
    """
    return dtype != torch.float16


def fold_where_cheaper(scale: Tensor | None, layer: nn.Linear | nn.Conv2d,
                       x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return weight and bias of a layer with LayerScale ``scale`` folded in, and None.

    On accelerators, and where float16 would lose it, return the layer's own and ``scale``, which
    the output is multiplied by. So too for few tokens ``x`` ``(B, N, C_in)``, since folding takes
    as long as multiplying ``C_in`` tokens; what is compiled does not depend on their number.
    Matmuls have the type of those of ``x``.
    """
    if scale is not None and should_use_cpu_forms(x) and can_hold_scale(get_matmul_dtype(x)):
        inputs = layer.weight.shape[1:].numel()
        if torch.compiler.is_compiling() or x.shape[0] * x.shape[1] >= inputs:
            return *scale_layer(scale, layer), None
    return layer.weight, layer.bias, scale


def feed_forward(x: Tensor,
                 norm: nn.Module | None,
                 mlp: nn.Module,
                 scale: Tensor | None,
                 drop_path: nn.Module,
                 given: Tensor | None = None) -> Tensor:
    """Return ``x + drop_path(scale * mlp(norm(given)))``; ``x`` may be overwritten.

    An accelerator calls all layers, and so does a CPU if they are modified (see :mod:`.fast_path`).
    Otherwise, with gradients, LayerScale is folded into the second layer where that is cheaper, so
    that its output need not be stored. Without gradients, blocks of tokens are computed in turn, so
    that the hidden layer of all tokens never exists.

    Args:
        x: Tokens ``(B, N, C)``; overwritten only without gradients.
        norm: Norm before the MLP, or None.
        mlp: timm's MLP with ``fc1``, GELU and ``fc2``, or a gated one.
        scale: LayerScale ``(C)``, or None.
        drop_path: Stochastic depth.
        given: Input of the branch, tokens of the same shape. Defaults to ``x``.
    """
    given = x if given is None else given
    if not should_use_cpu_forms(x):
        return add_branch(x, mlp(_normalize(norm, given)), scale, drop_path)
    is_local = is_drop_path(drop_path) and (norm is None or is_token_norm(norm))
    is_unmodified = is_local and find_modified_layer(mlp, MLP) is None
    at_once = torch.is_grad_enabled() or torch.compiler.is_compiling() or drop_path.training
    if is_unmodified and at_once:
        hidden = linear(_normalize(norm, given), mlp.fc1.weight, mlp.fc1.bias)
        weight, bias, scale = fold_where_cheaper(scale, mlp.fc2, hidden)
        return add(x, drop_path(gelu_linear(hidden, weight, bias)), scale)
    if at_once or not (is_unmodified or is_local and is_gated_mlp(mlp)):
        return add_branch(x, mlp(_normalize(norm, given)), scale, drop_path)
    if is_unmodified and scale is None and x.shape[1] <= BLOCK and isinstance(
            mlp.fc2, PackedLinear):
        return mlp.fc2.forward_add(x, linear_gelu(mlp.fc1, _normalize(norm, given)))
    for tokens, source in zip(x.split(BLOCK, dim=1), given.split(BLOCK, dim=1), strict=True):
        source = _normalize(norm, source)
        out = call_linear(mlp.fc2, linear_gelu(mlp.fc1, source)) if is_unmodified else mlp(source)
        out = out.to(x.dtype)  # sums of two types take several times as long
        tokens.add_(out) if scale is None else tokens.addcmul_(out, scale)
    return x


def _normalize(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)
