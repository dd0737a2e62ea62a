"""Weights of other sizes than a backbone's: patches, positions, and frequencies of more blocks."""
from __future__ import annotations

import logging
import math
from typing import Any

from mmengine.logging import print_log
from timm.layers import PatchEmbed, resample_abs_pos_embed, resample_patch_embed
from torch import Tensor

from colonnade.weights.state_dicts import State

#: RADIO's whose positions timm resamples so that the corners of the grids meet
ALIGNED_CORNERS = ('vit_base_patch16_radio_v3', 'vit_huge_patch16_radio_v3')


def options_of(model: str) -> dict[str, Any]:
    """How timm resamples patches and positions of a model's files, if not by its defaults."""
    bilinear = 'flexi' in model or 'radio' in model
    return dict(interpolation='bilinear', antialias=False) if bilinear else {}


def resized_patches(state: State, own: Tensor, model: str) -> State:
    """A file's patches, if they have another size than those of the backbone.

    Args:
        state: The file's tensors.
        own: The backbone's weight of patches ``(C, 3, p, p)``.
        model: timm's name of the backbone.
    """
    key = 'patch_embed.proj.weight'
    weight = state.get(key)
    if weight is None or weight.ndim != 4 or weight.shape[:2] != own.shape[:2]:
        return {}
    if weight.shape == own.shape:
        return {}
    return {key: resample_patch_embed(weight, list(own.shape[2:]), **options_of(model))}


def resized_positions(state: State, own: Tensor, patches: PatchEmbed, model: str) -> State:
    """A file's positions, if they are of another square grid than the backbone's; warns then.

    Args:
        state: The file's tensors.
        own: The backbone's positions ``(1, P + N, C)``, of prefix tokens that have any and the grid.
        patches: The backbone's layer that cuts the grid.
        model: timm's name of the backbone.
    """
    positions, grid = state.get('pos_embed'), patches.grid_size
    if positions is None or positions.ndim != 3 or positions.shape == own.shape:
        return {}
    prefix = own.shape[1] - math.prod(grid)
    count = max(positions.shape[1] - prefix, 0)
    side = math.isqrt(count)
    if side**2 != count or positions.shape[2] != own.shape[2]:
        return {}
    print_log(
        f'pos_embed of a {side} x {side} grid is resized to {grid[0]} x {grid[1]}, and from there '
        f'to that of each image. To keep them, write img_size={side * patches.patch_size[0]}',
        logger='current',
        level=logging.WARNING)
    resampled = resample_abs_pos_embed(
        positions,
        list(grid), [side, side],
        num_prefix_tokens=prefix,
        align_corners=model in ALIGNED_CORNERS or None,
        **options_of(model))
    return dict(pos_embed=resampled)


def first_frequencies(state: State, num_blocks: int) -> State:
    """A file's learned rotary frequencies ``(2, blocks, ...)``, if it has more blocks."""
    frequencies = state.get('rope.freqs')
    if frequencies is None or frequencies.ndim < 2 or frequencies.shape[1] <= num_blocks:
        return {}
    return {'rope.freqs': frequencies[:, :num_blocks]}
