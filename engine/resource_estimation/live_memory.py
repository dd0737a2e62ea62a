"""How much memory tensors hold at a time."""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """While open, the bytes of all tensors that live, and the most there were at once.

    Storages are counted, so views cost nothing, nor do tensors that autograd drops because a kernel
    recomputes them. What an operator holds only while it runs is not seen. torch's own
    ``MemTracker`` also says what kind of tensor it is, and takes many times as long.

    Args:
        tensors: What lives already.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._living: dict[int, weakref.ref] = {}
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._living:
            self._living[key] = weakref.ref(storage, lambda _: self._drop(key, size))
            self.now += size
            self.peak = max(self.peak, self.now)

    def _drop(self, key: int, size: int) -> None:
        del self._living[key]
        self.now -= size

    def __torch_dispatch__(self,
                           func: Callable[..., Any],
                           types: Any,
                           args: tuple = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        """Run an operator, and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                self._add(leaf)
        return result
