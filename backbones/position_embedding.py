"""Positions that are learned for one square grid, and resized for images and files of others.

Shapes: ``B`` images, ``h, w`` a grid of tokens, ``N = h w``, ``C`` width.
"""
from __future__ import annotations

import logging
import math

import torch
from mmengine.logging import print_log
from timm.layers import PatchEmbed
from torch import Tensor, nn

from colonnade.weights.state_dicts import State

from .columnar import ColumnarBackbone
from .kernels.resampling import resample_positions


class LearnedPositions(ColumnarBackbone):
    """A backbone whose tokens are patches with learned positions, ``pos_embed``, added.

    Images are padded with zeros at the bottom and right to whole patches. The positions are resized
    to the image's grid, bicubic and antialiased. The backbone keeps those of a square grid, which the
    column ``img_size`` of its table says. Positions of another square grid are resized to it when
    they are loaded, and a warning is logged.
    """

    patch_embed: PatchEmbed
    pos_embed: nn.Parameter  # (1, N, C)

    def resized(self, state: State) -> State:
        """The positions of a file, if it has others than the backbone's square grid; warns then."""
        positions = state.get('pos_embed')
        if positions is None or positions.ndim != 3 or positions.shape == self.pos_embed.shape:
            return {}
        side = math.isqrt(positions.shape[1])
        if side**2 != positions.shape[1] or positions.shape[2] != self.embed_dim:
            return {}
        self._warn_of_resizing(side)
        return dict(pos_embed=resample_positions(positions, (side, side), self._native_grid))

    def _warn_of_resizing(self, side: int) -> None:
        img_size, own = side * self.patch_size, self._native_grid[0]
        arch = self.variants.name_in_table(self.settings | dict(img_size=img_size))
        advice = f'img_size={img_size}' + (f' or arch={arch!r}' if arch else '')
        print_log(
            f'pos_embed of a {side} x {side} grid (images of {img_size}) is resized to {own} x '
            f'{own} (images of {own * self.patch_size}): features of images of {img_size} are no '
            f'longer those of the file. To keep them, write {advice}',
            logger='current',
            level=logging.WARNING)

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        grid = self._grid_of(img)
        return self.patch_embed(img) + self._positions(grid), grid  # (B, N, C)

    @property
    def _native_grid(self) -> tuple[int, int]:
        return self.patch_embed.grid_size

    def _positions(self, grid: tuple[int, int]) -> Tensor:
        """``(1, N, C)``."""
        if not torch.compiler.is_exporting() and grid == self._native_grid:
            return self.pos_embed
        return resample_positions(self.pos_embed, self._native_grid, grid)
