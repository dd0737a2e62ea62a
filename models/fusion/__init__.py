"""Whole models in the form for evaluation: folded and merged, the same to rounding."""
from .full_model import fuse, fuse_if_wanted, is_fused

__all__ = ['fuse', 'fuse_if_wanted', 'is_fused']
