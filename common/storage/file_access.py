"""Access to files that are local, on object storage or in shards."""
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

Settings = dict[str, Any] | None  # backend_args of datasets and transforms


@runtime_checkable
class CheckableBackend(Protocol):
    """A file backend of mmengine that can check whether a file exists."""

    def exists(self, filepath: Any) -> bool:
        """Return True if a file or folder exists."""


def is_remote(path: str | PathLike[str]) -> bool:
    """Return True if a path is a URL."""
    return '://' in str(path)


def is_local_path(path: str, settings: Settings = None) -> bool:
    """Return True if a path, read with these ``backend_args``, is in the local file system."""
    return not is_remote(path) and (settings or {}).get('backend', 'local') == 'local'


def is_readable(path: str, settings: Settings = None) -> bool:
    """Return True if it can be checked whether a path exists."""
    if not is_remote(path) and not settings:
        return True
    return isinstance(get_backend(path, settings), CheckableBackend)


def exists(path: str, settings: Settings = None) -> bool:
    """Return True if a file or folder exists, or if that cannot be checked."""
    if not is_remote(path) and not settings:
        return os.path.exists(path)
    backend = get_backend(path, settings)
    return backend.exists(path) if isinstance(backend, CheckableBackend) else True


def get_backend(path: str, settings: Settings = None) -> Any:
    """Return the file backend of a path.

    Raises:
        UserError: If no backend reads such URLs.
    """
    name, protocol = (settings or {}).get('backend'), path.partition('://')[0]
    if name is not None and name not in backends:
        raise UserError(f'backend_args.backend must be one of {", ".join(backends)}, got {name!r}')
    if name is None and is_remote(path) and ':' not in protocol and \
            protocol not in prefix_to_backends:
        known = ', '.join(f'{each}://' for each in prefix_to_backends if each)
        raise UserError(f'{path}: unknown protocol {protocol}://, expected one of {known}')
    try:
        return get_file_backend(path, backend_args=settings, enable_singleton=True)
    except ImportError as error:
        raise UserError(f'cannot read {path}: {error}') from error


def content(path: str | PathLike[str], settings: Settings = None) -> str | PathLike[str] | BytesIO:
    """Return a local path unchanged, or the content of a remote file, to open an image."""
    return BytesIO(get(str(path), settings)) if is_remote(path) or settings else path


@contextmanager
def local_copy(path: str, settings: Settings = None) -> Iterator[str]:
    """Context manager that yields a local path of a file, which is fetched if it is remote."""
    with get_local_path(path, settings) as local:
        yield str(local)
