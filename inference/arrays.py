"""Images that are given as arrays or tensors."""
from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from colonnade.runtime.images import ImageError

Channels = Literal['rgb', 'bgr']
CHANNELS = ('rgb', 'bgr')
EXPECTED = ('an image given as an array has shape (H, W, 3) or (H, W), as a tensor also (3, H, W), '
            'and values of type uint8, or floats from 0 to 1')


def as_rgb(image: np.ndarray | torch.Tensor, channels: Channels) -> np.ndarray:
    """Return a copy of an image as RGB values.

    Args:
        image: ``(H, W, 3)``, ``(H, W, 1)`` or ``(H, W)``, a tensor also ``(3, H, W)`` or
            ``(1, H, W)``; uint8, or floats from 0 to 1.
        channels: Order of its channels.

    Returns:
        ``(H, W, 3)``, uint8.

    Raises:
        ImageError: If it has another shape or type, or values out of range.
    """
    if isinstance(image, torch.Tensor):
        values = image.detach().cpu()
        values = (values.float() if values.is_floating_point() else values).numpy()
        if values.ndim == 3 and values.shape[0] in (1, 3):
            values = values.transpose(1, 2, 0)
    else:
        values = image
    shape, kind = tuple(image.shape), image.dtype
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[2] not in (1, 3) or not values.size:
        raise ImageError(f'{EXPECTED}, got {shape} and {kind}')
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= 0 and values.max() <= 1):
            raise ImageError(f'{EXPECTED}, got floats from {values.min():g} to {values.max():g}')
        values = (values * 255).round().astype(np.uint8)
    if values.dtype != np.uint8:
        raise ImageError(f'{EXPECTED}, got {shape} and {kind}')
    if channels == 'bgr':
        values = values[..., ::-1]
    return np.array(np.broadcast_to(values, (*values.shape[:2], 3)), order='C')


def is_array(source: Any) -> bool:
    """Return True if an image, or several, are given as an array or a tensor."""
    return isinstance(source, (np.ndarray, torch.Tensor))
