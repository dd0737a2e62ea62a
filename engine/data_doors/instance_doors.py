"""Doors for instances, which detectors take."""
from __future__ import annotations

from .door import Door

INSTANCE_DOORS: tuple[Door, ...] = ()
