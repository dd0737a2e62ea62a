"""Linear layers and products of tokens, computed the fast way of the device.

Shapes: ``B`` images, ``N`` tokens, ``C`` width.

On a CPU, torch gives matrix products of float32 to MKL, which on other makers' processors leaves
the wider half of the vector units unused, and convolutions to oneDNN, which does not. A linear
layer is a convolution with a 1 x 1 kernel, so there it is computed as one, forward and backward.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

HAS_ONEDNN = torch.backends.mkldnn.is_available()
BLOCK = 1024  # tokens that are computed together where that saves memory


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would compute products of ``x`` in; None if it is off."""
    device = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def suits_convolution(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN's float32 convolutions are to be had for these."""
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        return False  # inductor cannot store views of images of any size for gradients
    return (HAS_ONEDNN and x.device.type == 'cpu' and x.dtype == weight.dtype == torch.float32
            and autocast_dtype(x) is None)


def widened(x: Tensor) -> Tensor:
    """In float32, unless it is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def as_image(x: Tensor) -> Tensor:
    """Tokens ``(B, N, C)`` as an image ``(B, C, 1, N)`` in channels-last order, not copied."""
    return x.contiguous().unsqueeze(1).permute(0, 3, 1, 2)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer: ``(B, N, C_in)`` to ``(B, N, C_out)``; ``weight`` is ``(C_out, C_in)``."""
    if not suits_convolution(x, weight):
        return F.linear(x, weight, bias)
    out = F.conv2d(as_image(x), weight[:, :, None, None], bias)
    return out.permute(0, 2, 3, 1).reshape(*x.shape[:2], len(weight))


def linear_per_image(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As :func:`linear`, with weights ``(B, C_out, C_in)`` and biases ``(B, C_out)`` per image."""
    if not suits_convolution(x, weight):
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
    rows = zip(x.split(1), weight, bias, strict=True)
    return torch.cat([linear(*row)
                      for row in rows]) if len(x) > 1 else linear(x, weight[0], bias[0])


def gram(x: Tensor) -> Tensor:
    """``x^T x`` of each image, widened: tokens ``(B, N, C)`` to ``(B, C, C)``."""
    if torch.compiler.is_compiling() or not suits_convolution(x, x):
        x = widened(x)
        return x.mT @ x
    return _Gram.apply(x)


class _Gram(Function):
    """The product as what it is to oneDNN: the gradient of a 1 x 1 convolution's weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        weight = x.new_empty(x.shape[2], x.shape[2], 1, 1)
        return torch.stack([
            sum(weight_gradient(tokens, tokens, weight) for tokens in image.split(BLOCK, dim=1))
            for image in x.split(1)
        ])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, = ctx.saved_tensors
        symmetric = grad + grad.mT
        return linear_per_image(x, symmetric, symmetric.new_zeros(symmetric.shape[:2]))


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """``grad^T x`` over all images: ``(B, N, C_out)`` and ``(B, N, C_in)`` to ``(C_out, C_in)``."""
    return convolution_backward(grad, x, weight, [False, True, False])[1][:, :, 0, 0]


def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor,
                         wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight ``(C_out, C_in, 1, 1)`` and bias of :func:`linear`, as images."""
    return torch.ops.aten.convolution_backward(
        as_image(grad), as_image(x), weight, [len(weight)], [1, 1], [0, 0], [1, 1], False, [0, 0],
        1, wanted)


def add(x: Tensor, branch: Tensor, scale: Tensor | None = None) -> Tensor:
    """``x + scale * branch``; without gradients ``branch`` is overwritten.

    Args:
        x: Tokens ``(B, N, C)``.
        branch: The same shape, of lower precision under autocast.
        scale: ``(C)``; ``None`` is 1.
    """
    if torch.is_grad_enabled() or branch.dtype != x.dtype:
        return x + (branch if scale is None else branch * scale)
    return branch.add_(x) if scale is None else torch.addcmul(x, branch, scale)


def gelu(x: Tensor) -> Tensor:
    """GELU of a tensor that nobody else needs: without gradients it is overwritten."""
    if torch.is_grad_enabled() and x.requires_grad:
        return F.gelu(x)
    return torch.ops.aten.gelu_(x)


def gelu_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``linear(gelu(x), weight, bias)``; GELU is computed anew for the gradients, not stored."""
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and x.requires_grad):
        return linear(gelu(x), weight, bias)
    if dtype := autocast_dtype(x):
        x, weight, bias = (tensor.to(dtype) for tensor in (x, weight, bias))
    return _GeluLinear.apply(x, weight, bias)


class _GeluLinear(Function):

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(F.gelu(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        activated = F.gelu(x)
        if suits_convolution(grad, weight):
            grad_activated, grad_weight, grad_bias = convolution_backward(
                grad, activated, weight[:, :, None, None], [True, True, True])
            grad_activated = grad_activated.permute(0, 2, 3, 1).flatten(1, 2)
            grad_weight = grad_weight[:, :, 0, 0]
        else:
            grad_activated = grad @ weight
            grad_weight = grad.flatten(0, 1).mT @ activated.flatten(0, 1)
            grad_bias = grad.sum((0, 1))
        return torch.ops.aten.gelu_backward(grad_activated, x), grad_weight, grad_bias


def scaled(scale: Tensor | None, layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer whose output channels are multiplied by ``scale`` ``(C)``."""
    if scale is None:
        return layer.weight, layer.bias
    return layer.weight * scale.view(-1, *[1] * (layer.weight.ndim - 1)), layer.bias * scale


def feed_forward(x: Tensor, norm: nn.Module, mlp: nn.Module, scale: Tensor | None,
                 drop_path: nn.Module) -> Tensor:
    """``x + drop_path(scale * mlp(norm(x)))``; without gradients ``x`` is overwritten.

    LayerScale is folded into the second layer's weights where its output would be stored for
    gradients otherwise; where there are none, blocks of tokens go through one after the other, so
    that hidden layers of all tokens never exist together.

    Args:
        x: Tokens ``(B, N, C)``.
        norm: What comes before.
        mlp: timm's module with ``fc1``, GELU and ``fc2``.
        scale: LayerScale ``(C)``; ``None`` is 1.
        drop_path: Stochastic depth.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or drop_path.training:
        hidden = linear(norm(x), mlp.fc1.weight, mlp.fc1.bias)
        return add(x, drop_path(gelu_linear(hidden, *scaled(scale, mlp.fc2))))
    for tokens in x.split(BLOCK, dim=1):
        hidden = linear(norm(tokens), mlp.fc1.weight, mlp.fc1.bias)
        out = gelu_linear(hidden, mlp.fc2.weight, mlp.fc2.bias)
        tokens.add_(out) if scale is None else tokens.addcmul_(out, scale)
    return x
