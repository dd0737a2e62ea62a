"""Which devices run the implementations made for CPUs, decided here alone.

On a CPU, layers work head by head, in blocks of tokens or in strips of an image, which stay in its
cache. On an accelerator, each of these steps is a kernel launch, and a few large operators are
faster: it runs torch's plain ones. So does the meta device, on which operators are counted.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_cpu_forms_enabled = True


def should_use_cpu_forms(x: Tensor) -> bool:
    """Return True if a tensor's device runs the implementations made for CPUs."""
    return _cpu_forms_enabled and x.device.type == 'cpu'


@contextmanager
def accelerator_forms() -> Iterator[None]:
    """Context manager that makes a CPU compute as an accelerator does.

    Plans for a GPU measure its memory with it, and tests its values. It holds for all threads.
    """
    global _cpu_forms_enabled
    before, _cpu_forms_enabled = _cpu_forms_enabled, False
    try:
        yield
    finally:
        _cpu_forms_enabled = before
