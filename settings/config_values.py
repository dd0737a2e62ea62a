"""Values of a config as plain Python, nested or by names with dots."""
from __future__ import annotations

import re
from typing import Any

ADDRESS = re.compile(r' at 0x[0-9a-f]+')  # of an object of a config in Python


def plain(value: Any) -> Any:
    """A value of a config with dicts in place of mmengine's, which files would need it for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


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
