"""Memory formats in which feature maps are computed and returned."""
from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from .devices import HAS_AVX512, should_use_cpu_forms
from .fast_path import is_transformed


@cache
def can_read_any_order() -> bool:
    """Return True if mmcv's operators are torchvision's, or missing.

    Its compiled RoIAlign silently misreads maps in any format but the default.
    """
    try:
        spec = find_spec('mmcv._ext')
    except ModuleNotFoundError:
        return True
    return spec is None or str(spec.origin).endswith('.py')


def get_map_order(x: Tensor) -> torch.memory_format:
    """Return the format of maps on the device of ``x``: channels last on a CPU if it is faster.

    It is the default where consumers of the maps may not know any other; and with gradients but
    without AVX-512, since those of convolutions are slower in channels last there.
    """
    fast = (HAS_AVX512 or not torch.is_grad_enabled()) and not is_transformed()
    if fast and should_use_cpu_forms(x) and can_read_any_order():
        return torch.channels_last
    return torch.contiguous_format


def as_map(x: Tensor, height: int) -> Tensor:
    """Copy tokens ``(B, N, C)`` to a map ``(B, C, h, w)``, in :func:`get_map_order`."""
    image = x.mT.unflatten(2, (height, x.shape[1] // height))
    return image.clone(memory_format=get_map_order(x))
