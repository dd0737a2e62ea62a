"""ResMLP's cross-patch layer on other grids than the one that its matrix is for.

Shapes: ``B`` images, ``N = h w`` tokens of the image's grid, ``n`` side of the native grid,
``M = n n`` its tokens, ``C`` width. ``W`` is the layer's matrix ``(M, M)``, output by input, and
``b`` its bias ``(M,)``. On the native grid both ways of mixing are the layer itself.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels.fast_path import is_linear
from ..kernels.resampling import Grid, Resampling


def mix(layer: nn.Module, x: Tensor) -> Tensor:
    """What a cross-patch layer makes of tokens ``(B, M, C)`` of its own grid; ``(B, M, C)``."""
    if not is_linear(layer):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    return torch.baddbmm(layer.bias[:, None], layer.weight.expand(x.shape[0], -1, -1), x)


def matrix_of(layer: nn.Module, num_tokens: int, like: Tensor) -> Tensor:
    """``W`` of a cross-patch layer, ``(M, M)``; if not torch's, by its answers to unit vectors.

    Args:
        layer: Linear, or what stands in the place of one.
        num_tokens: ``M``.
        like: Has the precision and device that ``layer`` takes.
    """
    if type(layer) is nn.Linear:
        return layer.weight
    units = torch.eye(num_tokens, dtype=like.dtype, device=like.device)
    answers = layer(torch.cat((units, torch.zeros_like(units[:1])))[None])[0]  # (M + 1, M)
    return (answers[:-1] - answers[-1]).T


def mix_resampled(x: Tensor, layer: nn.Module, down: Resampling, up: Resampling) -> Tensor:
    """The layer on any grid, each native token standing for the part of the image that it covers.

    D resamples the tokens to the native grid and U back: bicubic, antialiased. Their rows sum to 1,
    hence constant images stay constant. With w the diagonal of W, this is::

        U (W - diag(w)) D x  +  (U w) * x  +  U b

    The first term is W resized as a 4-D tensor ``(n, n, n, n)``. Its input side is scaled so that
    the response to a constant image is the resized response of W. The second term is the weight of
    a token for itself, which resampling the tokens would blur. The dense ``(N, N)`` matrix is never
    formed: besides its result, the largest temporary is one of ``(B, N, C)``.

    Args:
        x: ``(B, N, C)``.
        layer: The cross-patch layer.
        down: D, from the image's grid to the native one.
        up: U, back.
    """
    coarse = down(x)  # (B, M, C)
    mixed = mix(layer, coarse)
    # read after the call: hooks of pruning and the like set the weights then
    own = matrix_of(layer, coarse.shape[1], x).diagonal()[:, None]  # (M, 1)
    return torch.addcmul(up(mixed - own * coarse), up(own[None]), x)  # (B, N, C)


def window_shift(size: int, window: int) -> int:
    """Half a window if a side is longer than one, else 0; without a branch, for exports."""
    return window // 2 * torch.sym_min(torch.sym_max(size - window, 0), 1)


def window_index(size: int, window: int, shift: int, device: torch.device) -> Tensor:
    """Positions along one side that windows read, in order; the border is repeated beyond it."""
    count = (size + shift + window - 1) // window  # no negative numbers: ONNX rounds to zero
    return (torch.arange(count * window, device=device) - shift).clamp(0, size - 1)


def mix_windows(x: Tensor, layer: nn.Module, grid: Grid, native: Grid, *, shifted: bool) -> Tensor:
    """The layer applied to each window of the native grid's size; linear in the number of tokens.

    Windows that reach over the border read the border's tokens again.

    Args:
        x: ``(B, N, C)``.
        layer: The cross-patch layer.
        grid: ``(h, w)``.
        native: ``(n, n)``.
        shifted: Let the windows begin half a window before the border, along each side that is
            longer than one window.
    """
    shifts = [window_shift(*sides) if shifted else 0 for sides in zip(grid, native, strict=True)]
    rows, columns = (window_index(size, n, shift, x.device)
                     for size, n, shift in zip(grid, native, shifts, strict=True))
    x = x.unflatten(1, grid).index_select(1, rows).index_select(2, columns)  # (B, H n, W n, C)
    batch, channels = x.shape[0], x.shape[-1]
    high, wide = rows.shape[0] // native[0], columns.shape[0] // native[1]
    x = x.view(batch, high, native[0], wide, native[1], channels).transpose(2, 3)
    x = x.reshape(batch * high * wide, native[0] * native[1], channels)
    x = mix(layer, x).reshape(batch, high, wide, *native, channels).transpose(2, 3)
    x = x.reshape(batch, high * native[0], wide * native[1], channels)
    (top, left), (height, width) = shifts, grid
    return x[:, top:top + height, left:left + width].flatten(1, 2)
