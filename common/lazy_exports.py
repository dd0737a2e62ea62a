"""Package attributes that are imported on first access, which keeps importing the package fast."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .missing_libraries import report_missing_libraries


def lazy_exports(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        package: ``__name__`` of the package.
        homes: Module that defines each name, relative to the package if it begins with a dot.
    """

    def find(name: str) -> Any:
        if name in homes:
            with report_missing_libraries():
                return getattr(import_module(homes[name], package), name)
        raise AttributeError(f'module {package!r} has no attribute {name!r}')

    return find
