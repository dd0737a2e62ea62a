"""Lists of names in messages."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def format_names(names: Sequence[Any], max_names: int = 10) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    more = f' and {len(names) - max_names} more' if len(names) > max_names else ''
    return ', '.join(map(str, names[:max_names])) + more
