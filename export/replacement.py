"""Copies of models in which modules are of subclasses that graphs can be made of."""
from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import nn


def with_subclasses(model: nn.Module, kinds: Mapping[type[nn.Module],
                                                     type[nn.Module]]) -> nn.Module:
    """Return a copy of a model, with the same tensors, whose modules of some classes are others.

    Args:
        model: Stays as it is.
        kinds: Exact class of a module -> its subclass, which has the same attributes.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, tensors)
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if kind := kinds.get(type(module)):
            if module not in made:
                made[module] = nn.Module.__new__(kind)
                vars(made[module]).update(vars(module))
            model.set_submodule(path, made[module])
    return model
