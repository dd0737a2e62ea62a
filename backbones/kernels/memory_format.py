"""Memory formats in which feature maps are computed and returned."""
from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from .devices import should_use_cpu_forms
from .fast_path import is_transformed


@cache
def operators_read_any_order() -> bool:
    """Return True if mmcv's operators are torchvision's, or missing.

    Its compiled RoIAlign silently misreads maps in any format but the default.
    """
    try:
        spec = find_spec('mmcv._ext')
    except ModuleNotFoundError:
        return True
    return spec is None or str(spec.origin).endswith('.py')


def map_order(x: Tensor) -> torch.memory_format:
    """Return the format of maps on the device of ``x``: channels last on a CPU if it is faster.

    With gradients it is the default, since those of convolutions are slower in channels last. So it
    is where consumers of the maps may not know any other.
    """
    fast = should_use_cpu_forms(x) and not torch.is_grad_enabled() and not is_transformed()
    return torch.channels_last if fast and operators_read_any_order() else torch.contiguous_format


def as_map(x: Tensor, height: int) -> Tensor:
    """Copy tokens ``(B, N, C)`` to a map ``(B, C, h, w)`` in the format of :func:`map_order`."""
    image = x.mT.unflatten(2, (height, x.shape[1] // height))
    return image.clone(memory_format=map_order(x))
