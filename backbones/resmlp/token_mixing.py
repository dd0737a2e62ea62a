"""ResMLP's cross-patch layer on other grids than the one that its matrix is for.

Shapes: ``B`` images, ``N = h w`` tokens of the image's grid, ``n`` side of the native grid,
``M = n n`` its tokens, ``C`` width. ``W`` is the layer's matrix ``(M, M)``, output by input, and
``b`` its bias ``(M,)``. On the native grid both ways of mixing are the layer itself.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.untouched import is_linear

Grid = tuple[int, int]
DOUBLE = ('cpu', 'cuda', 'meta')  # devices that have float64


@dataclass(frozen=True, eq=False)  # tensors have no truth value
class Resampling:
    """What takes tokens from one grid to another."""
    old: Grid
    new: Grid
    rows: Tensor  # (new h, old h)
    columns: Tensor  # (new w, old w)

    @classmethod
    def between(cls, old: Grid, new: Grid, like: Tensor) -> Resampling:
        """From one grid to another, for tokens like these."""
        matrices = (resampling_matrix(*sides, like) for sides in zip(old, new, strict=True))
        return cls(old, new, *matrices)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens ``(B, h w, C)`` on the other grid, first along their rows, then their columns.

        Neither step needs more memory than its result.
        """
        if self.old == self.new:
            return tokens
        (old_h, old_w), (new_h, new_w) = self.old, self.new
        batch, _, channels = tokens.shape
        x = tokens.reshape(batch * old_h, old_w, channels)
        x = self.columns.to(x.dtype) @ x  # (B h, w', C)
        x = x.view(batch, old_h, new_w * channels)
        x = self.rows.to(x.dtype) @ x  # (B, h', w' C)
        return x.view(batch, new_h * new_w, channels)


def resampling_matrix(old: int, new: int, like: Tensor) -> Tensor:
    """``(new, old)``: resamples a line of ``old`` values; bicubic, antialiased, rows sum to 1.

    It is computed in float64, on the CPU for devices that have none, and at least float32.
    """
    device = like.device if like.device.type in DOUBLE else 'cpu'
    lines = torch.eye(old, dtype=torch.float64, device=device)[None, None]
    matrix = F.interpolate(lines, size=(new, old), mode='bicubic', antialias=True)[0, 0]
    matrix = matrix / matrix.sum(dim=1, keepdim=True)
    return matrix.to(torch.promote_types(like.dtype, torch.float32)).to(like.device)


def mix(layer: nn.Module, x: Tensor) -> Tensor:
    """What a cross-patch layer makes of tokens ``(B, M, C)`` of its own grid; ``(B, M, C)``."""
    if not is_linear(layer):
        return layer(x.transpose(1, 2)).transpose(1, 2)
    return torch.baddbmm(layer.bias[:, None], layer.weight.expand(len(x), -1, -1), x)


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


def window_index(size: int, window: int, shift: int, device: torch.device) -> Tensor:
    """Positions along one side that windows read, in order; the border is repeated beyond it."""
    count = -(-(size + shift) // window)
    return torch.arange(count * window, device=device).sub_(shift).clamp_(0, size - 1)


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
    shifts = [n // 2 if shifted and size > n else 0 for size, n in zip(grid, native, strict=True)]
    rows, columns = (window_index(size, n, shift, x.device)
                     for size, n, shift in zip(grid, native, shifts, strict=True))
    x = x.unflatten(1, grid)[:, rows[:, None], columns]  # (B, H n, W n, C)
    batch, channels = len(x), x.shape[-1]
    high, wide = len(rows) // native[0], len(columns) // native[1]
    x = x.view(batch, high, native[0], wide, native[1], channels).transpose(2, 3)
    x = x.reshape(batch * high * wide, native[0] * native[1], channels)
    x = mix(layer, x).reshape(batch, high, wide, *native, channels).transpose(2, 3)
    x = x.reshape(batch, high * native[0], wide * native[1], channels)
    (top, left), (height, width) = shifts, grid
    return x[:, top:top + height, left:left + width].flatten(1, 2)
