"""ResMLP's cross-patch layer on other grids than the one that its matrix is for.

Shapes: ``B`` images, ``N = h w`` tokens of the image's grid, ``n`` side of the native grid,
``M = n n`` its tokens, ``C`` width. ``W`` is the layer's matrix ``(M, M)``, output by input, and
``b`` its bias ``(M,)``. On the native grid both functions are the layer itself.
"""
from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

Grid = tuple[int, int]


@lru_cache(maxsize=64)
def resampling_matrix(old: int, new: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``(new, old)``: resamples a line of ``old`` values; bicubic, antialiased, rows sum to 1."""
    with torch.inference_mode(False), torch.no_grad():
        lines = torch.eye(old, dtype=torch.float64, device=device)[None, None]
        matrix = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
        return (matrix / matrix.sum(dim=1, keepdim=True)).to(dtype)


def resample(tokens: Tensor, old: Grid, new: Grid) -> Tensor:
    """Tokens ``(B, h w, C)`` on another grid, first along their rows, then along their columns.

    Neither step needs more memory than its result.
    """
    if old == new:
        return tokens
    (old_h, old_w), (new_h, new_w) = old, new
    kind = tokens.dtype, tokens.device
    channels = tokens.shape[-1]
    x = tokens.reshape(-1, old_w, channels)  # (B h, w, C)
    x = resampling_matrix(old_w, new_w, *kind) @ x
    x = x.view(-1, old_h, new_w * channels)  # (B, h, w' C)
    x = resampling_matrix(old_h, new_h, *kind) @ x
    return x.view(-1, new_h * new_w, channels)


def mix_resampled(x: Tensor, weight: Tensor, bias: Tensor, grid: Grid, native: Grid) -> Tensor:
    """The layer on any grid, each native token standing for the part of the image that it covers.

    With D resampling a line of tokens to the native grid and U back (bicubic, antialiased, rows sum
    to 1, hence constant images stay constant) and w the diagonal of W, this is::

        U (W - diag(w)) D x  +  (U w) * x  +  U b

    Its first term is W resized as a 4-D tensor ``(n, n, n, n)``, rows and columns, the input side
    scaled so that the response to a constant image is the resized response of W. The second is what
    a token says to itself, which resampling the tokens would blur. The dense ``(N, N)`` matrix is
    never formed: besides its result, the largest temporary is one of ``(B, N, C)``.

    Args:
        x: ``(B, N, C)``.
        weight: ``(M, M)``.
        bias: ``(M,)``.
        grid: ``(h, w)``.
        native: ``(n, n)``.
    """
    if grid == native:
        return torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x)
    own = weight.diagonal()[:, None]  # (M, 1)
    coarse = resample(x, grid, native)  # (B, M, C)
    mixed = torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), coarse) - own * coarse
    return torch.addcmul(resample(mixed, native, grid), resample(own[None], native, grid),
                         x)  # (B, N, C)


def window_index(size: int, window: int, shift: int, device: torch.device) -> Tensor:
    """Positions along one side that windows read, in order; the border is repeated beyond it."""
    count = -(-(size + shift) // window)
    return torch.arange(count * window, device=device).sub_(shift).clamp_(0, size - 1)


def mix_windows(x: Tensor, weight: Tensor, bias: Tensor, grid: Grid, native: Grid, *,
                shifted: bool) -> Tensor:
    """The layer applied to each window of the native grid's size; linear in the number of tokens.

    Windows that reach over the border read the border's tokens again.

    Args:
        x: ``(B, N, C)``.
        weight: ``(M, M)``.
        bias: ``(M,)``.
        grid: ``(h, w)``.
        native: ``(n, n)``.
        shifted: Let the windows begin half a window before the border, along each side that is
            longer than one window.
    """
    shifts = [n // 2 if shifted and size > n else 0 for size, n in zip(grid, native, strict=True)]
    rows, columns = (window_index(size, n, shift, x.device)
                     for size, n, shift in zip(grid, native, shifts, strict=True))
    x = x.unflatten(1, grid)[:, rows[:, None], columns]  # (B, H n, W n, C)
    x = x.unflatten(2, (-1, native[1])).unflatten(1, (-1, native[0]))  # (B, H, n, W, n, C)
    batch, high, _, wide, _, channels = x.shape
    x = x.transpose(2, 3).reshape(-1, weight.shape[1], channels)  # (B H W, M, C)
    x = torch.baddbmm(bias[:, None], weight.expand(len(x), -1, -1), x)
    x = x.view(batch, high, wide, *native, channels).transpose(2, 3)
    x = x.reshape(batch, high * native[0], wide * native[1], channels)
    (top, left), (height, width) = shifts, grid
    return x[:, top:top + height, left:left + width].flatten(1, 2)
