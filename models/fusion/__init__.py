"""Fusion of full models for evaluation: layers folded and merged, equal up to rounding error."""
from .full_model import fuse, is_fused, maybe_fuse

__all__ = ['fuse', 'maybe_fuse', 'is_fused']
