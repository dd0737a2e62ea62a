"""Deformable convolution v1 and v2, computed by torchvision."""
from __future__ import annotations

import torch
from torch import Tensor

from .common import OPERATORS, promote


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, **sizes: int) -> None:
    """Write a deformable convolution (arXiv 1703.06211) to ``output``; offsets are y, x."""
    output.copy_(deform(input, weight, offset, None, None, sizes))


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, **sizes: int) -> None:
    """Write the gradients of :func:`deform_conv_forward` for inputs and offsets."""
    grads = compute_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_input.copy_(grads[0])
    grad_offset.copy_(grads[2])


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor, *,
                                    scale: float, **sizes: int) -> None:
    """Write the gradient of :func:`deform_conv_forward` for weights, times ``scale``."""
    weight = torch.zeros_like(grad_weight)
    grads = compute_gradients(grad_output, input, weight, offset, None, None, sizes)
    grad_weight.copy_(grads[1] * scale)


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor, *,
                                  with_bias: bool, **sizes: int) -> None:
    """Write a modulated deformable convolution (arXiv 1811.11168) to ``output``."""
    output.copy_(deform(input, weight, offset, mask, bias if with_bias else None, sizes))


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor, *,
                                   with_bias: bool, **sizes: int) -> None:
    """Write the gradients of :func:`modulated_deform_conv_forward`."""
    grads = compute_gradients(grad_output, input, weight, offset, mask, bias if with_bias else None,
                              sizes)
    targets = (grad_input, grad_weight, grad_offset, grad_mask)
    for target, grad in zip(targets, grads[:4], strict=True):
        target.copy_(grad)
    if with_bias:
        grad_bias.copy_(grads[4])


def deform(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None, bias: Tensor | None,
           sizes: dict[str, int]) -> Tensor:
    """Return torchvision's deformable convolution ``(B, C', h, w)``."""
    return OPERATORS.deform_conv2d(*prepare_tensors(input, weight, offset, mask, bias),
                                   *get_geometry(sizes), mask is not None)


def compute_gradients(grad: Tensor, input: Tensor, weight: Tensor, offset: Tensor,
                      mask: Tensor | None, bias: Tensor | None,
                      sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """Return gradients of :func:`deform` for inputs, weights, offsets, masks and biases."""
    tensors = prepare_tensors(input, weight, offset, mask, bias)
    return OPERATORS._deform_conv2d_backward(
        promote(grad), *tensors, *get_geometry(sizes), mask is not None)


def prepare_tensors(input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor | None,
                    bias: Tensor | None) -> list[Tensor]:
    """Return tensors in full precision, with placeholders for missing ones."""
    mask = input.new_zeros(len(input), 1) if mask is None else mask
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return [promote(tensor) for tensor in (input, weight, offset, mask, bias)]


def get_geometry(sizes: dict[str, int]) -> list[int]:
    """Return strides, paddings, dilations (each vertical, horizontal) and groups."""
    names = [('dH', 'stride_h'), ('dW', 'stride_w'), ('padH', 'pad_h'), ('padW', 'pad_w'),
             ('dilationH', 'dilation_h'), ('dilationW', 'dilation_w')]
    return [sizes[first] if first in sizes else sizes[second]
            for first, second in names] + [sizes['group'], sizes['deformable_group']]
