"""Settings that make one config of another."""
from __future__ import annotations

from typing import Any

from colonnade.settings.config_values import without_key

NOTHING = object()


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return what to merge into ``old``, as mmengine merges configs, so that ``new`` results."""
    changes: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key, NOTHING)
        if before == value:
            continue
        if not isinstance(value, dict) or before is NOTHING:
            changes[key] = without_key(value, '_scope_')
        elif is_merged(before, value):
            changes[key] = difference(before, value)
        else:  # mmengine takes this key away where it replaces something, only there
            changes[key] = dict(_delete_=True, **without_key(value, '_scope_'))
    return changes


def is_merged(old: Any, new: dict[str, Any]) -> bool:
    """Return True if a dict can be made of another without removing anything."""
    return isinstance(old, dict) and old.get('type') == new.get('type') and old.keys() <= new.keys()
