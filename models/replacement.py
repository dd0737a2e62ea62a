"""Modules of a model that give way to subclasses of theirs."""
from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import nn

M = TypeVar('M', bound=nn.Module)


def copy_as(kind: type[M], module: nn.Module, **attributes: object) -> M:
    """Return a module of a subclass with the parameters, buffers and children of another.

    Args:
        kind: A subclass of the module's class; its ``__init__`` is not called.
        module: The module to copy. Both share their state; only one should be used afterwards.
        attributes: Attributes that the copy has in addition.
    """
    twin: M = object.__new__(kind)
    twin.__setstate__(vars(module) | attributes)
    return twin


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Put modules in the place of others, wherever a model holds those.

    Args:
        model: Changed in place. It cannot be replaced itself.
        replacements: The new modules by the old ones.
    """
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if path and module in replacements:
            model.set_submodule(path, replacements[module])


def copy_with_subclasses(model: nn.Module, kinds: Mapping[type[nn.Module],
                                                          type[nn.Module]]) -> nn.Module:
    """Return a copy of a model, with the same tensors, whose modules of some classes are others.

    Args:
        model: Stays as it is.
        kinds: Exact class of a module -> its subclass, which has the same attributes.
    """
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    model = copy.deepcopy(model, tensors)
    replace_modules(
        model, {
            module: copy_as(kinds[type(module)], module)
            for module in model.modules() if type(module) in kinds
        })
    return model
