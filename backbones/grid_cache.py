"""Values that a parameter gives for a grid, computed once as long as the parameter stays."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class GridCache:
    """The latest values computed from a parameter, one per grid; for evaluation only.

    A copied or pickled cache is empty: the copy's parameter goes its own way.
    """

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self._values: dict[tuple, Tensor] = {}

    def get(self, grid: tuple[int, int], parameter: nn.Parameter,
            compute: Callable[[], Tensor]) -> Tensor:
        """``compute()``, or what it gave for this grid and this state of the parameter."""
        key = (grid, parameter.device, parameter.dtype, parameter._version)
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
