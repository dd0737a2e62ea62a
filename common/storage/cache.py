"""Copies of remote files on this machine, kept by URL and version."""
from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..errors import FileError

VARIABLE = 'COLONNADE_CACHE'


def cache_folder() -> Path:
    """``COLONNADE_CACHE``, or ``colonnade`` in the folder for caches."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE]).expanduser()
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'colonnade'


def cached(url: str, version: str, fetch: Callable[[str], object]) -> Path:
    """A copy of a remote file, fetched if this version of it is not there yet.

    Several processes may do so at once: each writes a file of its own, the last takes its place.

    Args:
        url: Of the file.
        version: Changes with its content, such as an ETag.
        fetch: Writes it to a path.

    Raises:
        OSError: If the cache cannot be written.
    """
    digest = hashlib.sha256(f'{url}\n{version}'.encode()).hexdigest()[:32]
    path = cache_folder() / 'files' / digest / PurePosixPath(url).name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix='.unfinished-', dir=path.parent)
    except OSError as error:
        raise FileError(f'the cache of remote files cannot be written, {VARIABLE} names another '
                        f'folder for it: {error}') from error
    os.close(handle)
    try:
        fetch(scratch)
        os.replace(scratch, path)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return path
