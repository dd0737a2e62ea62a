"""Names of a package that are imported when they are first asked for, so that it takes no time."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: Its ``__name__``.
        homes: The module that each name is defined in, relative to the package if it begins with a
            dot.
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name], package), name)
        raise AttributeError(f'module {package!r} has no attribute {name!r}')

    return find
