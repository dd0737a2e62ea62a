"""XCiT's convolutional stem on a CPU: convolutions, norms and GELU in one, in strips of rows."""
from __future__ import annotations

import torch
from timm.models.xcit import ConvPatchEmbed
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.fast_path import (Parts, find_modified_layer, is_convolution, is_gelu, is_hooked,
                                 is_plain)
from ..kernels.folding import can_be_packed
from ..kernels.layers import gelu, gelu_convolution
from ..kernels.norms import fold_batch_norm, fold_batch_norm_into, is_fixed
from ..kernels.packed import PackedHalving

STEM_PIXELS = 2**18  # of images go through the stem together where no gradients are wanted


def is_halving(module: nn.Module) -> bool:
    """Whether it is a 3 x 3 convolution that halves height and width."""
    return is_plain(module,
                    PackedHalving) or (is_convolution(module, stride=2) and module.groups == 1
                                       and module.kernel_size == (3, 3))


STEM_PARTS: Parts = {
    '': lambda module: is_plain(module, ConvPatchEmbed),
    'proj': lambda module: is_plain(module, nn.Sequential),
}
ACTIVATION_PARTS: Parts = {'': is_gelu}
CONVOLUTION_PARTS: Parts = {
    '': lambda module: is_plain(module, nn.Sequential) and len(module) == 2,
    '0': is_halving,
    '1': lambda module: not is_hooked(module),
}


def find_modified_stem_layer(stem: nn.Module) -> str | None:
    """As :func:`~.fast_path.find_modified_layer`, of all layers of the stem."""
    if (name := find_modified_layer(stem, STEM_PARTS)) is not None:
        return name
    for index, layer in enumerate(stem.proj):
        name = find_modified_layer(layer, ACTIVATION_PARTS if index % 2 else CONVOLUTION_PARTS)
        if name is not None:
            return f'proj.{index}.{name}'.rstrip('.')
    return None


def run_stem(stem: ConvPatchEmbed, img: Tensor) -> Tensor:
    """``(B, 3, H, W)`` to ``(B, C, h, w)``, in parts where no gradients are wanted.

    Parts are a few images, or strips of one that is larger than :data:`STEM_PIXELS`: thin strips of
    many images would compute most rows twice.
    """
    convolutions = list(stem.proj)[::2]
    norms = [layer[1] for layer in convolutions]
    local = all(is_fixed(norm) or isinstance(norm, nn.Identity) for norm in norms)
    whole = not local or torch.is_grad_enabled() or torch.compiler.is_compiling()
    height = -(-img.shape[2] // stem.patch_size)
    rows = max(1, STEM_PIXELS // max(1, img.shape[3] * stem.patch_size))  # of one image
    images = max(1, rows // height)
    if not whole and len(img) > images:
        return torch.cat([run_stem(stem, part) for part in img.split(images)])
    if whole or rows >= height:
        return _run_strip(convolutions, img, 0, height)
    tops = range(0, height, rows)
    strips = [_run_strip(convolutions, img, top, min(top + rows, height)) for top in tops]
    return torch.cat(strips, 2)


def _run_strip(convolutions: list[nn.Sequential], img: Tensor, top: int, bottom: int) -> Tensor:
    """Rows ``top`` to ``bottom`` of the stem's output, from the rows of the image they need."""
    heights = [-(-img.shape[2] // 2**index) for index in range(len(convolutions))]
    paddings = []
    for height in reversed(heights):  # rows of the input that rows of the output need
        top, bottom = 2 * top - 1, 2 * bottom
        paddings.append((max(-top, 0), max(bottom - height, 0)))
        top, bottom = max(top, 0), min(bottom, height)
    x = img[:, :, top:bottom].contiguous(memory_format=torch.channels_last)
    for index, layer in enumerate(convolutions):
        x, padding = _padded(x, paddings.pop())
        if isinstance(layer[0], PackedHalving):
            x = layer[0](x, padding, gelu=index < len(convolutions) - 1)
        else:
            x = _convolve(layer[0], layer[1], x, padding, after_gelu=index > 0)
    return x


def _padded(x: Tensor, rows: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """An image with zeros above and below, and the padding that is left to the convolution.

    A convolution pads both sides alike. A row too many below an even number of rows is not read.

    Args:
        x: ``(B, C, H, W)``.
        rows: Of zeros above and below.
    """
    if rows == (1, 1) or (rows == (1, 0) and x.shape[2] % 2 == 0):
        return x, (1, 1)
    return (F.pad(x, (0, 0, *rows)) if any(rows) else x), (0, 1)  # F.pad copies even for nothing


def _convolve(conv: nn.Conv2d, norm: nn.Module, x: Tensor, padding: tuple[int, int], *,
              after_gelu: bool) -> Tensor:
    """GELU, convolution and norm, the last two in one where the norm is fixed.

    Not in half precision, where a product of weights loses more than it saves.

    Args:
        conv: 3 x 3.
        norm: What follows it.
        x: ``(B, C, H, W)``.
        padding: Rows and columns of zeros on either side.
        after_gelu: Whether GELU comes first.
    """
    weight, bias = conv.weight, conv.bias
    exact = x.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype
    fold = exact and is_fixed(norm)
    if fold:
        weight, bias = fold_batch_norm(conv, norm)
    if after_gelu and padding == (1, 1):
        x = gelu_convolution(x, weight, bias, stride=2, padding=1)
    else:
        x = F.conv2d(gelu(x) if after_gelu else x, weight, bias, stride=2, padding=padding)
    return x if fold else norm(x)


def fuse_stem(stem: ConvPatchEmbed, dtype: torch.dtype) -> None:
    """Fold batch norms that are fixed into the convolutions before them, and pack these."""
    for layer in list(stem.proj)[::2]:
        if is_fixed(layer[1]):
            fold_batch_norm_into(layer)
        if isinstance(layer[1], nn.Identity) and can_be_packed(layer[0].weight, dtype):
            layer[0] = PackedHalving(layer[0].weight, layer[0].bias, dtype)
