"""Values of a config as plain Python, nested or by names with dots."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

ADDRESS = re.compile(r' at 0x[0-9a-f]+')  # of an object of a config in Python


def map_dicts(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return a copy of a part of a config in which each dict is changed, the inner ones first.

    Args:
        value: The part. It is not changed, nor is what is in it other than dicts, lists and tuples.
        change: Returns a dict for a new plain one, which it may change.
    """
    if isinstance(value, dict):
        return change({key: map_dicts(item, change) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(map_dicts(item, change) for item in value)
    return value


def plain(value: Any) -> Any:
    """Return a value of a config with dicts in place of mmengine's, which files would need."""
    return map_dicts(value, lambda part: part)


def without_key(value: Any, key: str) -> Any:
    """Return a copy of a part of a config without a key, wherever it is, as plain Python."""
    return map_dicts(value, lambda part: {k: item for k, item in part.items() if k != key})


def flat(value: Any, name: str = '') -> dict[str, str]:
    """A config's settings with dots between the names of their parts, as texts."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    if not items:
        return {name: ADDRESS.sub('', repr(plain_sequence(value)))}
    found: dict[str, str] = {}
    for key, item in items:
        found |= flat(item, f'{name}.{key}' if name else key)
    return found


def plain_sequence(value: Any) -> Any:
    """Tuples as lists, and sets as sorted ones, whose order differs between processes."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    return list(value) if isinstance(value, tuple) else value
