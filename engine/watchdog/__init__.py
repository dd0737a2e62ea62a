"""Detection of processes that crash or hang."""
from .monitor import ProcessLost, watched

__all__ = ['ProcessLost', 'watched']
