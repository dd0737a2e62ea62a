"""Folders that one process at a time may write."""
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

LOCK = '.lock'
_handles: set[int] = set()  # of folders that are locked by this process


def _release_in_child() -> None:
    """Keep a fork, such as a worker that outlives its killed parent, from holding locks."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def locked(folder: str | Path, complaint: str) -> Iterator[bool]:
    """While open, nobody else locks this folder, and it is free when the process ends in any way.

    NFS locks files alone: there, an empty :data:`LOCK` stays in the folder.

    Args:
        folder: It exists.
        complaint: What the error says.

    Yields:
        Whether it is locked. Some file systems have no locks, and the folder stays open to all.

    Raises:
        UserError: If another process has locked it.
    """
    handles: list[int] = []
    try:
        yield _lock(Path(folder), complaint, handles)
    finally:
        for handle in handles:
            if handle in _handles:  # not so in a fork
                _handles.remove(handle)
                os.close(handle)


def _lock(folder: Path, complaint: str, handles: list[int]) -> bool:
    """Lock the folder, or else a file in it; adds what is opened to ``handles``."""
    for path, mode in ((folder, os.O_RDONLY), (folder / LOCK, os.O_RDWR | os.O_CREAT)):
        try:
            handles.append(os.open(path, mode, 0o666))
            _handles.add(handles[-1])
            fcntl.flock(handles[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(complaint) from None
        except OSError:
            continue
        return True
    return False
