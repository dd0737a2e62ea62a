"""Weights: safe reading of files, detection of their formats, and strict loading."""
from __future__ import annotations

from typing import Any

from .state_dicts import WeightsError

__all__ = ['WeightsError', 'load_weights']


def __getattr__(name: str) -> Any:
    """Import ``load_weights`` lazily, since it imports what downloads files."""
    if name == 'load_weights':
        from .loading import load_weights
        return load_weights
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
