"""Folders that only one process at a time may write."""
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

LOCK = '.lock'
_handles: set[int] = set()  # file descriptors of the folders that this process has locked


def _release_in_child() -> None:
    """Keep a fork, such as a worker that outlives its killed parent, from holding locks."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def lock_folder(folder: str | Path, complaint: str) -> Iterator[bool]:
    """Context manager that locks an existing folder until the block or the process ends.

    NFS only locks files: there, an empty :data:`LOCK` stays in the folder.

    Args:
        complaint: Message of the error.

    Yields:
        Whether the folder is locked. Some file systems have no locks.

    Raises:
        UserError: If another process has locked it.
    """
    opened: list[int] = []
    try:
        yield _lock(Path(folder), complaint, opened)
    finally:
        for handle in opened:
            if handle in _handles:  # a fork has closed them
                _handles.remove(handle)
                os.close(handle)


def _lock(folder: Path, complaint: str, opened: list[int]) -> bool:
    """Lock the folder, or a file in it; append file descriptors to ``opened``."""
    for path, mode in ((folder, os.O_RDONLY), (folder / LOCK, os.O_RDWR | os.O_CREAT)):
        try:
            opened.append(os.open(path, mode, 0o666))
            _handles.add(opened[-1])
            fcntl.flock(opened[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(complaint) from None
        except OSError:
            continue
        return True
    return False
