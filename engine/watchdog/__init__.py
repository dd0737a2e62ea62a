"""Processes that watch each other: one that dies or hangs ends the job, and says why."""
from .monitor import ProcessLost, watched

__all__ = ['ProcessLost', 'watched']
