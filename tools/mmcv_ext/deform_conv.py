"""Deformable convolution of either version, by that of torchvision."""
from __future__ import annotations

import torch
from torch import Tensor

from .common import OPERATORS, widened


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, **sizes: int) -> None:
    """Deformable convolution (arXiv 1703.06211) to ``output``; offsets are y, x of each point."""
    output.copy_(deform(input, weight, offset, None, None, sizes))


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, **sizes: int) -> None:
    """The gradients of :func:`deform_conv_forward` by maps and offsets."""
    grads = deform_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[2])


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor, *,
                                    scale: float, **sizes: int) -> None:
    """The gradient of :func:`deform_conv_forward` by its weights, times ``scale``."""
    weight = torch.zeros_like(grad_weight)
    grads = deform_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_weight.copy_(grads[1] * scale)


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor, *,
                                  with_bias: bool, **sizes: int) -> None:
    """Deformable convolution whose points have factors (arXiv 1811.11168) to ``output``."""
    output.copy_(deform(input, weight, offset, mask, bias if with_bias else None, sizes))


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *,
                                   with_bias: bool, **sizes: int) -> None:
    """The gradients of :func:`modulated_deform_conv_forward`."""
    grads = deform_gradients(grad_output, input, weight, offset, mask, bias if with_bias else None,
                             sizes)
    targets = (grad_input, grad_weight, grad_offset, grad_mask)
    for target, grad in zip(targets, grads[:4], strict=True):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])


def deform(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None,
           sizes: dict[str, int]) -> Tensor:
    """torchvision's deformable convolution: ``(B, C', h, w)``."""
    return OPERATORS.deform_conv2d(*deform_tensors(input, weight, offset, mask, bias),
                                   *geometry(sizes), mask is not None)


def deform_gradients(grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor,
                     mask: Tensor | None, bias: Tensor | None,
                     sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """Of :func:`deform`, by maps, weights, offsets, factors and biases."""
    tensors = deform_tensors(input, weight, offset, mask, bias)
    return OPERATORS._deform_conv2d_backward(
        widened(grad), *tensors, *geometry(sizes), mask is not None)


def deform_tensors(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None,
                   bias: Tensor | None) -> list[Tensor]:
    """In full precision, with stand-ins for a mask and for biases."""
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return [widened(tensor) for tensor in (input, weight, offset, mask, bias)]


def geometry(sizes: dict[str, int]) -> list[int]:
    """Strides, paddings, dilations (each vertical, horizontal) and groups, of either version."""
    names = [('dH', 'stride_h'), ('dW', 'stride_w'), ('padH', 'pad_h'), ('padW', 'pad_w'),
             ('dilationH', 'dilation_h'), ('dilationW', 'dilation_w')]
    return [sizes[first] if first in sizes else sizes[second]
            for first, second in names] + [sizes['group'], sizes['deformable_group']]
