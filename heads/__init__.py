"""Heads that mmdet and mmseg lack. Importing it imports mmseg."""
from .linear_head import LinearHead

__all__ = ['LinearHead']
