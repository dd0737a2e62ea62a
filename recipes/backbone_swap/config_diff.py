"""Settings that make one config of another."""
from __future__ import annotations

from typing import Any

NOTHING = object()


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return what to merge into ``old``, as mmengine merges configs, so that ``new`` results."""
    changes: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key, NOTHING)
        if before == value:
            continue
        if not isinstance(value, dict) or before is NOTHING:
            changes[key] = without_scope(value)
        elif is_merged(before, value):
            changes[key] = difference(before, value)
        else:  # mmengine takes this key away where it replaces something, only there
            changes[key] = dict(_delete_=True, **without_scope(value))
    return changes


def is_merged(old: Any, new: dict[str, Any]) -> bool:
    """Return True if a dict can be made of another without removing anything."""
    return isinstance(old, dict) and old.get('type') == new.get('type') and old.keys() <= new.keys()


def without_scope(value: Any) -> Any:
    """Return a value without what mmengine adds to configs of other packages."""
    if isinstance(value, dict):
        return {key: without_scope(item) for key, item in value.items() if key != '_scope_'}
    if isinstance(value, (list, tuple)):
        return type(value)(without_scope(item) for item in value)
    return value
