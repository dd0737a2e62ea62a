"""In which order of memory maps are computed and handed on."""
from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from .devices import should_use_cpu_forms
from .fast_path import is_transformed


@cache
def operators_read_any_order() -> bool:
    """Whether mmcv's operators are torchvision's, or there are none.

    Its compiled RoIAlign silently reads maps in any other order than the default wrongly.
    """
    try:
        found = find_spec('mmcv._ext')
    except ModuleNotFoundError:
        return True
    return found is None or str(found.origin).endswith('.py')


def map_order(x: Tensor) -> torch.memory_format:
    """The order that maps are given in: channels last on a CPU, where oneDNN is fast with it.

    The default where what reads the maps may not know others. Also with gradients: those of
    convolutions are slower in the other order.

    Args:
        x: Tokens or a map, on the device in question.
    """
    fast = should_use_cpu_forms(x) and not torch.is_grad_enabled() and not is_transformed()
    return torch.channels_last if fast and operators_read_any_order() else torch.contiguous_format


def as_map(x: Tensor, height: int) -> Tensor:
    """A copy of tokens ``(B, N, C)`` as a map ``(B, C, h, w)``, see :func:`map_order`."""
    image = x.mT.unflatten(2, (height, x.shape[1] // height))
    return image.clone(memory_format=map_order(x))
