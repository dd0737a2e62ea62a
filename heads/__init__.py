"""Heads that mmdet and mmseg lack; importing this package imports mmseg."""
from .linear_head import LinearHead

__all__ = ['LinearHead']
