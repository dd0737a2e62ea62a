"""Linear layers behind one another as one layer, for evaluation.

Shapes: ``C`` channels of the input, ``M`` between the layers, ``D`` of the output.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from colonnade.backbones.kernels.fast_path import is_plain
from colonnade.backbones.kernels.norms import is_fixed


def simplified(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """Layers that do the same to rounding with fewer products, in evaluation.

    Batch norms are folded into the convolution before them. A convolution of 1 x 1 pixels is merged
    into the transposed convolution before it. Layers that are hooked or of other classes stay, as
    do all parameters of those that are given.
    """
    simple: list[nn.Module] = []
    for layer in layers:
        last = simple[-1] if simple else nn.Identity()
        if is_fixed(layer) and can_absorb_norm(last):
            simple[-1] = fuse_conv_bn_eval(last, layer, type(last) is nn.ConvTranspose2d)
        elif is_cheaper_merged(last, layer):
            simple[-1] = merged(last, layer)
        else:
            simple.append(layer)
    return simple


def can_absorb_norm(layer: nn.Module) -> bool:
    """Whether a batch norm behind it can be folded into it."""
    return is_plain(layer, nn.Conv2d) or is_plain(layer, nn.ConvTranspose2d) and layer.groups == 1


def flattened(layer: nn.Module) -> Iterator[nn.Module]:
    """The layers of sequences within one another, without those that do nothing."""
    if is_plain(layer, nn.Sequential):
        for child in layer:
            yield from flattened(child)
    elif not is_plain(layer, nn.Identity):
        yield layer


def is_cheaper_merged(first: nn.Module, second: nn.Module) -> bool:
    """Whether two layers can be merged, and fewer products are needed then."""
    if not (is_plain(first, nn.ConvTranspose2d) and first.groups == 1 and is_pointwise(second)):
        return False
    between, out = second.in_channels, second.out_channels
    reach = first.kernel_size[0] * first.kernel_size[1] / (first.stride[0] * first.stride[1])
    return first.in_channels * out * reach < between * (first.in_channels * reach + out)


def is_pointwise(layer: nn.Module) -> bool:
    """Whether it is a convolution that computes each pixel from all channels of that pixel."""
    return (is_plain(layer, nn.Conv2d) and layer.kernel_size == layer.stride == (1, 1)
            and layer.padding == (0, 0) and layer.groups == 1)


@torch.no_grad()
def merged(first: nn.ConvTranspose2d, second: nn.Conv2d) -> nn.ConvTranspose2d:
    """The transposed convolution that does what ``first``, then ``second`` of 1 x 1 pixels do."""
    matrix = second.weight[:, :, 0, 0]  # (D, M)
    layer = nn.ConvTranspose2d(
        first.in_channels,
        second.out_channels,
        first.kernel_size,
        first.stride,
        first.padding,
        first.output_padding,
        dilation=first.dilation,
        device=matrix.device,
        dtype=matrix.dtype)
    layer.weight.copy_(torch.einsum('cmhw,dm->cdhw', first.weight, matrix))
    shift = layer.bias.new_zeros(len(matrix)) if first.bias is None else matrix @ first.bias
    layer.bias.copy_(shift if second.bias is None else shift + second.bias)
    return layer.eval()
