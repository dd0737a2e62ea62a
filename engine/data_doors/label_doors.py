"""Doors for label maps, which segmenters take."""
from __future__ import annotations

from .door import Door

LABEL_DOORS: tuple[Door, ...] = ()
