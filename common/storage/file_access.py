"""Questions about files wherever they lie: on this machine, on object storage or in shards."""
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from os import PathLike
from typing import Any, Protocol, runtime_checkable

from mmengine.fileio import get, get_file_backend, get_local_path
from mmengine.fileio.backends import backends, prefix_to_backends

from ..errors import UserError

Settings = dict[str, Any] | None  # backend_args of data sets and transforms


@runtime_checkable
class Listing(Protocol):
    """A reader of mmengine's that can tell whether a file is there."""

    def exists(self, filepath: Any) -> bool:
        """Whether there is a file or folder."""


def is_remote(path: str | PathLike[str]) -> bool:
    """Whether a path is a URL."""
    return '://' in str(path)


def is_here(path: str, settings: Settings = None) -> bool:
    """Whether a path is one of this machine's file system.

    Args:
        path: Of a file or folder.
        settings: ``backend_args`` of who reads it.
    """
    return not is_remote(path) and (settings or {}).get('backend', 'local') == 'local'


def is_readable(path: str, settings: Settings = None) -> bool:
    """Whether a path lies where it can be looked for: here, or in storage that lists its files.

    Args:
        path: Of a file or folder.
        settings: ``backend_args`` of who reads it.

    Raises:
        ValueError: If there is no reader for this kind of URL.
    """
    if not is_remote(path) and not settings:
        return True
    return isinstance(backend_of(path, settings), Listing)


def exists(path: str, settings: Settings = None) -> bool:
    """Whether a file or folder is there, or cannot be looked for.

    Raises:
        OSError: If storage does not answer.
        ValueError: As :func:`is_readable`.
    """
    if not is_remote(path) and not settings:
        return os.path.exists(path)
    backend = backend_of(path, settings)
    return backend.exists(path) if isinstance(backend, Listing) else True


def backend_of(path: str, settings: Settings = None) -> Any:
    """The reader of a path.

    Raises:
        ValueError: If there is none for this kind of URL.
    """
    named, prefix = (settings or {}).get('backend'), path.partition('://')[0]
    if named is not None and named not in backends:
        raise UserError(f'backend_args: there is no backend {named!r}: {", ".join(backends)}')
    if named is None and is_remote(path) and ':' not in prefix and prefix not in prefix_to_backends:
        known = ', '.join(f'{each}://' for each in prefix_to_backends if each)
        raise UserError(f'{path}: nothing reads {prefix}://; known are {known}')
    try:
        return get_file_backend(path, backend_args=settings, enable_singleton=True)
    except ImportError as error:
        raise UserError(f'{path} cannot be read: {error}') from error


def content(path: str | PathLike[str], settings: Settings = None) -> str | PathLike[str] | BytesIO:
    """What opens an image: its path on this machine, or its content.

    Raises:
        OSError: If it cannot be read.
    """
    return BytesIO(get(str(path), settings)) if is_remote(path) or settings else path


@contextmanager
def local_copy(path: str, settings: Settings = None) -> Iterator[str]:
    """While open, a path on this machine to a file that lies anywhere.

    Raises:
        OSError: If it cannot be read.
    """
    with get_local_path(path, settings) as local:
        yield str(local)
