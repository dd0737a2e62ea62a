"""Values that parameters give for a grid, computed once as long as the parameters stay."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .kernels import autocast_dtype


class GridCache:
    """The latest values computed from parameters, one per grid; for evaluation only.

    A copied or pickled cache is empty: the copy's parameters go their own way.
    """

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self._values: dict[tuple, Tensor] = {}

    def get(self, grid: tuple[int, int], parameters: tuple[nn.Parameter, ...],
            compute: Callable[[], Tensor]) -> Tensor:
        """``compute()``, or what it gave for this grid and this state of the parameters."""
        key = (grid, autocast_dtype(parameters[0]), *((p.device, p.dtype, p._version)
                                                      for p in parameters))
        if key not in self._values:
            while len(self._values) >= self.capacity:
                del self._values[next(iter(self._values))]  # the oldest
            with torch.inference_mode(False), torch.no_grad():
                self._values[key] = compute()
        return self._values[key]

    def clear(self) -> None:
        """Forget everything."""
        self._values.clear()

    def __reduce__(self) -> tuple:
        return GridCache, (self.capacity, )
