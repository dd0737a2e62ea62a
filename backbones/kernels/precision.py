"""In which precision tokens are multiplied, with and without autocast."""
from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast would compute products of ``x`` in; None if it is off."""
    device = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def product_dtype(x: Tensor) -> torch.dtype:
    """What products of ``x`` are computed in: autocast's, or its own."""
    return autocast_dtype(x) or x.dtype


def full_precision(x: Tensor) -> torch.autocast:
    """A context without autocast."""
    return torch.autocast('cpu' if x.is_meta else x.device.type, enabled=False)


def widened(x: Tensor) -> Tensor:
    """In float32, unless it is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
