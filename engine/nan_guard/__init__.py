"""NaN and infinity in training: steps on them are skipped, and too many stop training."""
from .nan_guard_hook import NanGuard, skip_bad_steps

__all__ = ['NanGuard', 'skip_bad_steps']
