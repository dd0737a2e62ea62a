"""Modules of a model that give way to subclasses of theirs."""
from __future__ import annotations

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
    twin: M = kind.__new__(kind)  # type: ignore[call-overload]
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
