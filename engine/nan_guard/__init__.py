"""NaN and infinity in training: steps on them are skipped, and too many stop training."""
from .nan_guard_hook import NanGuard, register_nan_guard

__all__ = ['NanGuard', 'register_nan_guard']
