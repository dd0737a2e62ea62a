"""XCiT's positions: Fourier features of rows and columns, projected (section 3.4)."""
from __future__ import annotations

import torch
from timm.models.xcit import PositionalEncodingFourier
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.fast_path import is_plain, is_unobserved
from ..kernels.precision import full_precision, widened
from ..kernels.without_memory import without_memory


class FourierPositions(PositionalEncodingFourier):
    """timm's positions, with less to compute.

    Half of the features are those of a token's row, half those of its column. The projection is
    linear: that of a token is a sum of one for its row and one for its column.

    Args:
        positions: timm's module, whose projection this one takes.
    """

    def __init__(self, positions: PositionalEncodingFourier) -> None:
        with without_memory():  # the projection is not kept
            super().__init__(positions.hidden_dim, positions.dim, positions.temperature)
        self.token_projection = positions.token_projection

    def is_unmodified(self) -> bool:
        """Whether the parameters are all there is to it, see :mod:`.fast_path`."""
        return is_unobserved(self, FourierPositions) and is_plain(self.token_projection, nn.Conv2d)

    def of_tokens(self, grid: tuple[int, int]) -> Tensor:
        """Positions of the tokens of a grid, ``(1, N, C)``."""
        layer = self.token_projection
        with full_precision(layer.weight):
            of_rows, of_columns = widened(layer.weight).flatten(1).split(self.hidden_dim, dim=1)
            frequencies = self._frequencies()
            rows = self._features(grid[0], frequencies)  # (h, hidden_dim)
            columns = self._features(grid[1], frequencies)  # (w, hidden_dim)
            rows = F.linear(rows, of_rows, widened(layer.bias))  # (h, C)
            columns = F.linear(columns, of_columns)  # (w, C)
            return (rows[:, None] + columns).flatten(0, 1)[None].to(layer.weight.dtype)

    def _frequencies(self) -> Tensor:
        """Return what places are divided by, ``(hidden_dim // 2)``."""
        device = self.token_projection.weight.device
        pairs = torch.arange(self.hidden_dim // 2, device=device, dtype=torch.float32)
        return self.temperature**(2 * pairs / self.hidden_dim)

    def _features(self, length: int, frequencies: Tensor) -> Tensor:
        """Sines and cosines of the places along a line, ``(length, hidden_dim)``."""
        dtype = torch.promote_types(self.token_projection.weight.dtype, torch.float32)
        places = torch.arange(1, length + 1, device=frequencies.device, dtype=torch.float32)
        places = places / (length + self.eps) * self.scale
        angles = places[:, None] / frequencies
        return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1).to(dtype)
