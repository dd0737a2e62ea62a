"""Images as networks get them when no test pipeline reads them."""
from __future__ import annotations

from pathlib import Path

import cv2
import mmcv
import torch
from torch import Tensor

from colonnade.common.errors import UserError


def decode_image(content: bytes, name: Path) -> Tensor:
    """Return the RGB values ``(3, H, W)``, uint8, that mmcv decodes.

    Args:
        content: Content of an image file.
        name: Its path, for the message.

    Raises:
        ValueError: If it is not an image.
    """
    try:
        pixels = mmcv.imfrombytes(content, channel_order='rgb')
    except cv2.error:
        pixels = None
    if pixels is None:
        raise UserError(f'{name} is no image that can be read')
    return torch.from_numpy(pixels).permute(2, 0, 1)
