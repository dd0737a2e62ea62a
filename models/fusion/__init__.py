"""Whole models in the form for evaluation: folded and merged, the same to rounding."""
from .full_model import fuse, is_fused, maybe_fuse

__all__ = ['fuse', 'maybe_fuse', 'is_fused']
