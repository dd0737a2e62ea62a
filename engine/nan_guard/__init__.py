"""Skipping of optimizer steps on NaN or Inf; too many in a row stop training."""
from .nan_guard_hook import NanGuard, register_nan_guard

__all__ = ['NanGuard', 'register_nan_guard']
