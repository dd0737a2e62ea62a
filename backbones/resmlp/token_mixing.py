"""ResMLP's cross-patch layer on grids other than that of its matrix.

Shapes: ``B`` images, ``N = h w`` tokens of the image's grid, ``n`` side of the native grid,
``M = n n`` its tokens, ``C`` width. ``W`` is the layer's matrix ``(M, M)``, output by input, and
``b`` its bias ``(M,)``. On the native grid both ways of mixing equal the layer.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from ..kernels.fast_path import is_linear
from ..kernels.resampling import Grid, Resampling


def mix(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a cross-patch layer to tokens ``(B, M, C)`` of its native grid."""
    if not is_linear(layer):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    return torch.baddbmm(layer.bias[:, None], layer.weight.expand(x.shape[0], -1, -1), x)


def get_mixing_matrix(layer: nn.Module, num_tokens: int, like: Tensor) -> Tensor:
    """Return ``W`` of a layer; that of a replaced layer is its response to unit vectors."""
    if type(layer) is nn.Linear:
        return layer.weight
    units = torch.eye(num_tokens, dtype=like.dtype, device=like.device)
    responses = layer(torch.cat((units, torch.zeros_like(units[:1])))[None])[0]  # (M + 1, M)
    return (responses[:-1] - responses[-1]).T


def mix_resampled(x: Tensor, layer: nn.Module, down: Resampling, up: Resampling) -> Tensor:
    """Apply the layer to any grid, by resampling the tokens to the native one.

    D resamples the tokens to the native grid and U back: bicubic, antialiased. Their rows sum to 1,
    hence constant images stay constant. With w the diagonal of W, this is::

        U (W - diag(w)) D x  +  (U w) * x  +  U b

    The first term is W resized as a 4-D tensor ``(n, n, n, n)``, with its input side scaled so that
    the response to a constant image is the resized response of W. The second term is the weight of
    a token for itself, which resampling the tokens would blur. The dense ``(N, N)`` matrix is never
    formed: the largest temporary is ``(B, N, C)``.
    """
    coarse = down(x)  # (B, M, C)
    mixed = mix(layer, coarse)
    # Read after the call, since hooks such as those of pruning set the weights in it.
    own = get_mixing_matrix(layer, coarse.shape[1], x).diagonal()[:, None]  # (M, 1)
    return torch.addcmul(up(mixed - own * coarse), up(own[None]), x)  # (B, N, C)


def mix_windows(x: Tensor, layer: nn.Module, grid: Grid, native: Grid, *, shifted: bool) -> Tensor:
    """Apply the layer to each window of the grid ``native``; linear in the number of tokens.

    Beyond the border, windows repeat its tokens. With ``shifted``, windows begin half a window
    before the border, along sides longer than a window.
    """
    shifts, indices = [], []
    for size, window in zip(grid, native, strict=True):
        # No branches and no negative quotients: exports have symbolic sizes, and ONNX rounds to 0.
        is_longer = torch.sym_min(torch.sym_max(size - window, 0), 1)
        shift = window // 2 * is_longer if shifted else 0
        count = (size + shift + window - 1) // window
        index = torch.arange(count * window, device=x.device) - shift
        shifts.append(shift)
        indices.append(index.clamp(0, size - 1))
    rows, columns = indices
    x = x.unflatten(1, grid).index_select(1, rows).index_select(2, columns)  # (B, H n, W n, C)
    batch, channels = x.shape[0], x.shape[-1]
    num_rows, num_columns = rows.shape[0] // native[0], columns.shape[0] // native[1]
    x = x.view(batch, num_rows, native[0], num_columns, native[1], channels).transpose(2, 3)
    x = x.reshape(batch * num_rows * num_columns, native[0] * native[1], channels)
    x = mix(layer, x).reshape(batch, num_rows, num_columns, *native, channels).transpose(2, 3)
    x = x.reshape(batch, num_rows * native[0], num_columns * native[1], channels)
    (top, left), (height, width) = shifts, grid
    return x[:, top:top + height, left:left + width].flatten(1, 2)
