"""Number of channels of images, and pretrained weights for others than red, green and blue."""
from __future__ import annotations

import re
from collections.abc import Sequence

from timm.models._manipulate import adapt_input_conv
from torch import Tensor

from colonnade.weights.state_dicts import State

#: weight of the convolution of images, of which XCiT has several
INPUT = re.compile(r'(patch_embed|stem)\.proj\.(0\.0\.)?weight')


def needs_channels(weight: Tensor, own: Tensor) -> bool:
    """Return True if a convolution of a file takes RGB images, and that of the backbone others."""
    return weight.ndim == 4 and weight.shape[1] == 3 != own.shape[1]


def adapt_channels(weight: Tensor, in_channels: int, rgb_channels: Sequence[int] | None) -> Tensor:
    """Return weights ``(C, in_channels, k, k)`` for those of RGB images, ``(C, 3, k, k)``.

    The three are repeated and scaled by ``3 / in_channels``, or summed for one channel, as timm
    does. With ``rgb_channels``, these get the three, and the others zeros.
    """
    if rgb_channels is None:
        return adapt_input_conv(in_channels, weight)
    adapted = weight.new_zeros(len(weight), in_channels, *weight.shape[2:])
    adapted[:, list(rgb_channels)] = weight
    return adapted


def infer_channels(state: State) -> int:
    """Infer the number of channels of images from the weights of a backbone."""
    return next((value.shape[1] for key, value in state.items() if INPUT.fullmatch(key)), 3)
