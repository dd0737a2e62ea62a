"""Devices: which run CPU implementations, their precision under autocast, and the meta device.

On a CPU, layers work head by head, in blocks of tokens or in strips of an image, which stay in its
cache. On an accelerator each of these steps is a kernel launch, so it runs torch's few large
operators. So does the meta device, on which operators are counted.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: steps of initializers that change a tensor in place
INIT_STEPS = (Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.clamp_, Tensor.mul_,
              Tensor.add_, Tensor.fill_, Tensor.zero_)
HAS_AVX512 = torch.backends.cpu.get_cpu_capability() == 'AVX512'
_cpu_forms_enabled = True


def should_use_cpu_forms(x: Tensor) -> bool:
    """Return True if a tensor's device runs the implementations made for CPUs."""
    return _cpu_forms_enabled and x.device.type == 'cpu'


def has_mmcv_kernels(x: Tensor) -> bool:
    """Return True if mmcv's CUDA kernels support a tensor; they lack bfloat16."""
    return x.is_cuda and x.dtype != torch.bfloat16


@contextmanager
def force_accelerator_forms() -> Iterator[None]:
    """Context manager that makes a CPU compute as an accelerator does, in all threads.

    Resource estimates for a GPU measure its memory with it, and tests check its values.
    """
    global _cpu_forms_enabled
    before, _cpu_forms_enabled = _cpu_forms_enabled, False
    try:
        yield
    finally:
        _cpu_forms_enabled = before


def get_autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the type in which autocast computes matmuls of ``x``, None if it is off."""
    device = x.device.type
    if x.is_meta or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def get_matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which matmuls of ``x`` are computed: autocast's, or its own."""
    return get_autocast_dtype(x) or x.dtype


def disable_autocast(x: Tensor) -> torch.autocast:
    """Return a context without autocast on the device of ``x``."""
    return torch.autocast('cpu' if x.is_meta else x.device.type, enabled=False)


def to_float32(x: Tensor) -> Tensor:
    """Return ``x`` in float32, unless it is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _SkipInit(TorchFunctionMode):
    """Mode without initialization of tensors on the meta device, which is slow for no effect."""

    def __torch_function__(self,
                           func: Callable,
                           types: Any,
                           args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func in INIT_STEPS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Context manager that builds modules on the meta device, where tensors have no values."""
    with torch.device('meta'), _SkipInit():
        yield
