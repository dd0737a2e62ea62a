"""XCiT's stem on a CPU, fused and in strips of rows, and its positions with less to compute."""
from __future__ import annotations

import torch
from timm.models.xcit import ConvPatchEmbed, PositionalEncodingFourier
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.devices import disable_autocast, on_meta_device, to_float32
from ..kernels.fast_path import (Parts, find_modified_layer, is_convolution, is_exact_type, is_gelu,
                                 is_hooked, is_unobserved)
from ..kernels.folding import can_be_packed
from ..kernels.layers import gelu, gelu_convolution
from ..kernels.norms import fold_batch_norm, is_fixed
from ..kernels.packed import PackedHalving

STEM_PIXELS = 2**17  # pixels that go through the stem together without gradients
# Below, converting weights to channels_last takes longer than it saves.
CHANNELS_LAST_PIXELS = 208**2


def is_halving(module: nn.Module) -> bool:
    """Return True if a module is a 3 x 3 convolution that halves height and width."""
    return is_exact_type(module,
                         PackedHalving) or (is_convolution(module, stride=2) and module.groups == 1
                                            and module.kernel_size == (3, 3))


STEM_PARTS: Parts = {
    '': lambda module: is_exact_type(module, ConvPatchEmbed),
    'proj': lambda module: is_exact_type(module, nn.Sequential),
}
ACTIVATION_PARTS: Parts = {'': is_gelu}
CONVOLUTION_PARTS: Parts = {
    '': lambda module: is_exact_type(module, nn.Sequential) and len(module) == 2,
    '0': is_halving,
    '1': lambda module: not is_hooked(module),
}


def find_modified_stem_layer(stem: nn.Module) -> str | None:
    """Return the path of the first layer of the stem that must be called, or None."""
    if (name := find_modified_layer(stem, STEM_PARTS)) is not None:
        return name
    for index, layer in enumerate(stem.proj):
        name = find_modified_layer(layer, ACTIVATION_PARTS if index % 2 else CONVOLUTION_PARTS)
        if name is not None:
            return f'proj.{index}.{name}'.rstrip('.')
    return None


def run_stem(stem: ConvPatchEmbed, img: Tensor) -> Tensor:
    """Map ``(B, 3, H, W)`` to ``(B, C, h, w)``, in parts where there are no gradients.

    Parts are a few images, or strips of one larger than :data:`STEM_PIXELS`: thin strips of many
    images would compute most rows twice.
    """
    convolutions = list(stem.proj)[::2]
    norms = [layer[1] for layer in convolutions]
    is_local = all(is_fixed(norm) or isinstance(norm, nn.Identity) for norm in norms)
    at_once = not is_local or torch.is_grad_enabled() or torch.compiler.is_compiling()
    height = -(-img.shape[2] // stem.patch_size)
    rows = max(1, STEM_PIXELS // max(1, img.shape[3] * stem.patch_size))  # rows per image
    images = max(1, rows // height)
    if not at_once and len(img) > images:
        return torch.cat([run_stem(stem, part) for part in img.split(images)])
    if at_once or rows >= height:
        return _run_strip(convolutions, img, 0, height)
    tops = range(0, height, rows)
    strips = [_run_strip(convolutions, img, top, min(top + rows, height)) for top in tops]
    return torch.cat(strips, 2)


def _run_strip(convolutions: list[nn.Sequential], img: Tensor, top: int, bottom: int) -> Tensor:
    """Compute rows ``top`` to ``bottom`` of the output from the rows of the image they need."""
    heights = [-(-img.shape[2] // 2**index) for index in range(len(convolutions))]
    paddings = []
    for height in reversed(heights):  # rows of the input that rows of the output need
        top, bottom = 2 * top - 1, 2 * bottom
        paddings.append((max(-top, 0), max(bottom - height, 0)))
        top, bottom = max(top, 0), min(bottom, height)
    compiling = torch.compiler.is_compiling()  # for all sizes at once
    is_large = compiling or img.numel() >= img.shape[1] * CHANNELS_LAST_PIXELS
    x = img[:, :, top:bottom].contiguous(
        memory_format=torch.channels_last if is_large else torch.contiguous_format)
    for index, layer in enumerate(convolutions):
        x, padding = _pad(x, paddings.pop())
        if isinstance(layer[0], PackedHalving):
            x = layer[0](x, padding, gelu=index < len(convolutions) - 1)
        else:
            x = _convolve(layer[0], layer[1], x, padding, after_gelu=index > 0)
    return x


def _pad(x: Tensor, rows: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Add rows of zeros above and below, and return what the convolution still has to pad.

    A convolution pads both sides alike. It does not read an extra row below an even number of rows.
    """
    if rows == (1, 1) or (rows == (1, 0) and x.shape[2] % 2 == 0):
        return x, (1, 1)
    return (F.pad(x, (0, 0, *rows)) if any(rows) else x), (0, 1)  # F.pad copies even for nothing


def _convolve(conv: nn.Conv2d, norm: nn.Module, x: Tensor, padding: tuple[int, int], *,
              after_gelu: bool) -> Tensor:
    """Apply GELU, convolution and norm, the last two in one if the norm is fixed and x is large.

    Folding takes as long as normalizing as many pixels as an output is computed from. In half
    precision they stay apart, since folded weights would lose more than they save.
    """
    weight, bias = conv.weight, conv.bias
    is_precise = x.dtype in (torch.float32, torch.float64) and x.dtype == weight.dtype
    pixels = len(x) * x.shape[2] * x.shape[3] // 4  # of the output
    is_large = torch.compiler.is_compiling() or pixels >= weight.shape[1:].numel()
    fold = is_precise and is_fixed(norm) and is_large
    if fold:
        weight, bias = fold_batch_norm(conv, norm)
    if after_gelu and padding == (1, 1):
        x = gelu_convolution(x, weight, bias, stride=2, padding=1)
    else:
        x = F.conv2d(gelu(x) if after_gelu else x, weight, bias, stride=2, padding=padding)
    return x if fold else norm(x)


@torch.no_grad()
def fuse_stem(stem: ConvPatchEmbed, dtype: torch.dtype) -> None:
    """Fold fixed batch norms into the convolutions before them, and pack these."""
    for layer in list(stem.proj)[::2]:
        if is_fixed(layer[1]):
            weight, bias = fold_batch_norm(*layer)
            layer[0].weight.copy_(weight)
            layer[0].bias = nn.Parameter(bias)
            layer[1] = nn.Identity()
        if isinstance(layer[1], nn.Identity) and can_be_packed(layer[0].weight, dtype):
            layer[0] = PackedHalving(layer[0].weight, layer[0].bias, dtype)


class FourierPositions(PositionalEncodingFourier):
    """timm's Fourier features of rows and columns, projected (section 3.4).

    The projection is linear, and half of the features depend on the row, half on the column. So the
    position of a token is the sum of a projection for its row and one for its column.

    Args:
        positions: timm's module, whose projection is used.
    """

    def __init__(self, positions: PositionalEncodingFourier) -> None:
        with on_meta_device():  # the projection is not kept
            super().__init__(positions.hidden_dim, positions.dim, positions.temperature)
        self.token_projection = positions.token_projection

    def is_unmodified(self) -> bool:
        """Return True if the fast path can be used."""
        return is_unobserved(self, FourierPositions) and is_exact_type(
            self.token_projection, nn.Conv2d)

    def embed_grid(self, grid: tuple[int, int]) -> Tensor:
        """Return the positions of a grid, ``(1, N, C)``."""
        layer = self.token_projection
        with disable_autocast(layer.weight):
            row_weight, column_weight = to_float32(layer.weight).flatten(1).split(
                self.hidden_dim, dim=1)
            frequencies = self._compute_frequencies()
            rows = self._compute_features(grid[0], frequencies)  # (h, hidden_dim)
            columns = self._compute_features(grid[1], frequencies)  # (w, hidden_dim)
            rows = F.linear(rows, row_weight, to_float32(layer.bias))  # (h, C)
            columns = F.linear(columns, column_weight)  # (w, C)
            return (rows[:, None] + columns).flatten(0, 1)[None].to(layer.weight.dtype)

    def _compute_frequencies(self) -> Tensor:
        device = self.token_projection.weight.device
        pairs = torch.arange(self.hidden_dim // 2, device=device, dtype=torch.float32)
        return self.temperature**(2 * pairs / self.hidden_dim)

    def _compute_features(self, length: int, frequencies: Tensor) -> Tensor:
        """Compute sines and cosines of positions along a line, ``(length, hidden_dim)``."""
        dtype = torch.promote_types(self.token_projection.weight.dtype, torch.float32)
        positions = torch.arange(1, length + 1, device=frequencies.device, dtype=torch.float32)
        positions = positions / (length + self.eps) * self.scale
        angles = positions[:, None] / frequencies
        return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1).to(dtype)
