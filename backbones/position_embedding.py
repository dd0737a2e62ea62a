"""Learned positions of a square grid, resized to the grids of images and files.

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
    """Base class of backbones that add learned positions ``pos_embed`` to patches.

    Images are padded with zeros at the bottom and right to whole patches. Positions are kept for
    the square grid of the column ``img_size``, and resized to the grid of each image, bicubic and
    antialiased. Those of files with another grid are resized when they are loaded, with a warning.
    """

    patch_embed: PatchEmbed
    pos_embed: nn.Parameter  # (1, N, C)

    def _resize_tensors(self, state: State) -> State:
        """Resize the positions of a file with another square grid, and log a warning."""
        positions = state.get('pos_embed')
        if positions is None or positions.ndim != 3 or positions.shape == self.pos_embed.shape:
            return {}
        side = math.isqrt(positions.shape[1])
        if side**2 != positions.shape[1] or positions.shape[2] != self.embed_dim:
            return {}
        img_size, own = side * self.patch_size, self._native_grid[0]
        arch = self.variants.find_name(self.settings | dict(img_size=img_size))
        advice = f'img_size={img_size}' + (f' or arch={arch!r}' if arch else '')
        print_log(
            f'pos_embed of a {side} x {side} grid ({img_size} px images) is resized to {own} x '
            f'{own} ({own * self.patch_size} px images), which changes the features of {img_size} '
            f'px images. To keep it unchanged, set {advice}',
            logger='current',
            level=logging.WARNING)
        return dict(pos_embed=resample_positions(positions, (side, side), self._native_grid))

    def _embed(self, img: Tensor) -> tuple[Tensor, tuple]:
        grid, positions = self._get_grid(img), self.pos_embed
        if torch.compiler.is_exporting() or grid != self._native_grid:
            positions = resample_positions(positions, self._native_grid, grid)
        return self.patch_embed(img) + positions, grid  # (B, N, C)

    @property
    def _native_grid(self) -> tuple[int, int]:
        return self.patch_embed.grid_size
