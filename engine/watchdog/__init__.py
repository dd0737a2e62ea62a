"""Processes that watch each other: one that fails or hangs ends the job, and says why."""
from .monitor import HANG_LIMIT, ProcessLost, watched

__all__ = ['HANG_LIMIT', 'ProcessLost', 'watched']
