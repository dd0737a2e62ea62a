"""Config values as plain Python objects, nested or flattened to dotted keys."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def map_dicts(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a config section in which ``change`` is applied to each dict, inner first.

    Args:
        value: Config section. Dicts, lists and tuples are copied, everything else is shared.
        change: Function that gets a new plain dict, which it may modify, and returns one.
    """
    if isinstance(value, dict):
        return change({key: map_dicts(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(map_dicts(item, change) for item in value)
    return value


def plain(value: Any) -> Any:
    """Return a copy of a config section with plain dicts instead of mmengine's."""
    return map_dicts(value, lambda part: part)


def remove_key(value: Any, key: str) -> Any:
    """Return a plain copy of a config section without a key, at any depth."""
    return map_dicts(value, lambda part: {k: item for k, item in part.items() if k != key})


def flat(value: Any, name: str = '') -> dict[str, str]:
    """Return the ``repr`` of each setting by its dotted key.

    Tuples become lists, sets become sorted lists and addresses are removed, since they differ
    between processes.
    """
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    if items:
        settings: dict[str, str] = {}
        for key, item in items:
            settings |= flat(item, f'{name}.{key}' if name else key)
        return settings
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    elif isinstance(value, tuple):
        value = list(value)
    return {name: re.sub(r' at 0x[0-9a-f]+', '', repr(value))}
