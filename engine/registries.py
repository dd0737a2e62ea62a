"""What a config's ``type`` stands for, without building it."""
from __future__ import annotations

from typing import Any

from mmengine import registry
from mmengine.registry import DefaultScope, Registry

REGISTRIES = tuple(value for value in vars(registry).values() if isinstance(value, Registry))


def find_class(kind: Any, *registries: Registry) -> Any:
    """The class that a ``type`` names; None if there is none.

    Args:
        kind: A name, with or without its library (``mmdet.FPN``), or a class, which is returned.
        registries: Of mmengine, whose children in the default scope are looked at first; all if not
            given.
    """
    if not isinstance(kind, str):
        return kind
    current = DefaultScope.get_current_instance()
    scope, _, name = kind.rpartition('.')
    scope = scope or (current.scope_name if current else '')
    for found in registries or REGISTRIES:
        for candidate in (found.children.get(scope), found):
            cls = None if candidate is None else candidate.get(name)
            if cls is not None:
                return cls
    return None


def known_types() -> set[str]:
    """The names of all that is registered, in mmengine and the libraries that are loaded."""
    every = [child for found in REGISTRIES for child in (found, *found.children.values())]
    return {name for found in every for name in found.module_dict}
