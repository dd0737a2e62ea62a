"""Modules that are built for their shapes alone."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: steps of initialisers that change a tensor in place
FILLING = (Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.clamp_, Tensor.mul_, Tensor.add_,
           Tensor.fill_, Tensor.zero_)  # yapf: disable


class WithoutFilling(TorchFunctionMode):
    """A context that leaves out what initialisers do to tensors of the meta device.

    They take most of the time that a module is built in there, and change nothing.
    """

    def __torch_function__(self,
                           func: Callable,
                           types: Any,
                           args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func in FILLING and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def without_memory() -> Iterator[None]:
    """Context manager to build modules in, on the meta device: their tensors have no values."""
    with torch.device('meta'), WithoutFilling():
        yield
