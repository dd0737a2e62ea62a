"""Processes that watch each other: one that fails or hangs ends the job, and says why."""
from .monitor import ProcessLost, watched

__all__ = ['ProcessLost', 'watched']
