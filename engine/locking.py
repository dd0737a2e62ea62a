"""Folders that one process at a time may write."""
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_handles: set[int] = set()  # of folders that are locked by this process


def _release_in_child() -> None:
    """Keep a fork, such as a worker that outlives its killed parent, from holding locks."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def locked(folder: str | Path, complaint: str) -> Iterator[None]:
    """While open, nobody else locks this folder; no file is left behind, whatever ends a process.

    Args:
        folder: It exists. Where the file system has no locks, it stays open to all.
        complaint: What the error says.

    Raises:
        FileExistsError: If another process has locked it.
    """
    handle = os.open(folder, os.O_RDONLY)
    _handles.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(complaint) from None
        except OSError:  # no locks here
            pass
        yield
    finally:
        if handle in _handles:  # not so in a fork
            _handles.remove(handle)
            os.close(handle)
