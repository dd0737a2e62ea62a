"""Checks of the number of channels of images, without slow imports."""
from __future__ import annotations

from collections.abc import Sequence

from .errors import UserError


def check_channels(in_channels: int, rgb_channels: Sequence[int] | None) -> None:
    """Raise a UserError for a number or indices of channels that are impossible."""
    if in_channels < 1:
        raise UserError(f'in_channels must be at least 1, got {in_channels}')
    if rgb_channels is None:
        return
    if in_channels == 3:
        raise UserError('rgb_channels has no effect on three channels: they must be red, green and '
                        'blue in this order for pretrained weights')
    known = set(range(in_channels))
    if len(rgb_channels) != 3 or len(set(rgb_channels)) < 3 or not known.issuperset(rgb_channels):
        raise UserError('rgb_channels must be three different indices from 0 to '
                        f'{in_channels - 1}, got {tuple(rgb_channels)}')
