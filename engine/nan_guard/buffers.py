"""Buffers of a model that its forward pass changes, such as the statistics of batch norms."""
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Buffers:
    """Copies of a model's buffers, to undo what a forward pass did to them.

    A batch that is not finite would spoil running means and variances for good, although no step
    is taken on it. Buffers are copied again if torch counts a change of them. It counts none of
    running means and variances, so those of norms always are.

    Args:
        model: Of a training.
    """

    def __init__(self, model: nn.Module) -> None:
        self.places = [(module._buffers, name, isinstance(module, _NormBase))
                       for module in model.modules() for name in module._buffers]
        self.seen: list[tuple[int, int] | None] = [None] * len(self.places)
        self.copies: list[Tensor | None] = [None] * len(self.places)
        self.keep()

    def changed(self) -> Iterator[tuple[int, Tensor]]:
        """Buffers that may have another value than their copy, and their places."""
        for place, (buffers, name, is_of_norm) in enumerate(self.places):
            buffer = buffers.get(name)
            if buffer is not None and (is_of_norm
                                       or self.seen[place] != (id(buffer), buffer._version)):
                yield place, buffer

    def keep(self) -> None:
        """Copy what has changed."""
        old: list[Tensor] = []
        new: list[Tensor] = []
        for place, buffer in self.changed():
            copy = self.copies[place]
            if copy is None or copy.shape != buffer.shape:
                self.copies[place] = buffer.detach().clone()
            else:
                old.append(copy)
                new.append(buffer.detach())
            self.seen[place] = id(buffer), buffer._version
        if old:
            torch._foreach_copy_(old, new)

    def restore(self) -> None:
        """Give what has changed its copy's values again."""
        with torch.no_grad():
            for place, buffer in self.changed():
                copy = self.copies[place]
                if copy is not None and copy.shape == buffer.shape:
                    buffer.copy_(copy)
                    self.seen[place] = id(buffer), buffer._version
