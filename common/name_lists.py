"""Lists of names, counts and suggestions of similar names, for messages."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


def format_names(names: Sequence[Any], max_names: int = 10) -> str:
    """Return the first names, separated by commas, and the number of the others."""
    more = f' and {len(names) - max_names} more' if len(names) > max_names else ''
    return ', '.join(map(str, names[:max_names])) + more


def format_count(number: int, noun: str) -> str:
    """Return a number with a noun, such as "1 process" or "2 processes"."""
    return f'{number} {noun}' + (number != 1) * ('es' if noun.endswith('s') else 's')


def suggest_names(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> str:
    """Return "did you mean A or B?", or an empty string if no known name is similar.

    Args:
        count: Maximum number of suggestions.
        cutoff: Minimum similarity, from 0 to 1.
    """
    return ask_for_names(get_close_matches(name, list(known), n=count, cutoff=cutoff))


def ask_for_names(names: Sequence[str]) -> str:
    """Return "did you mean A or B?", or an empty string for no names."""
    return f'did you mean {" or ".join(names)}?' if names else ''
