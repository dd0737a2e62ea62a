"""Detection of processes that crash or hang."""
from .monitor import ProcessLost, watch_processes

__all__ = ['ProcessLost', 'watch_processes']
