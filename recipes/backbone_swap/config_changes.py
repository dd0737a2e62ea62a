"""Changes of a config: the settings to override in its base, and notes for the user."""
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from colonnade.settings.config_values import remove_key

MISSING = object()


@dataclass
class Notes:
    """Comments of the config that is written.

    Attributes:
        reasons: Sentences by the top-level setting that they explain.
        open_questions: Decisions that are left to the user.
    """
    reasons: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    open_questions: list[str] = field(default_factory=list)


def compute_changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the config that turns ``old`` into ``new`` if it has ``old`` as its base."""
    changes: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key, MISSING)
        if before == value:
            continue
        if not isinstance(value, dict) or before is MISSING:
            changes[key] = remove_key(value, '_scope_')
        elif isinstance(before, dict) and before.get('type') == value.get('type') and \
                before.keys() <= value.keys():
            changes[key] = compute_changes(before, value)
        else:  # mmengine accepts _delete_ only where it replaces something
            changes[key] = dict(_delete_=True, **remove_key(value, '_scope_'))
    return changes
