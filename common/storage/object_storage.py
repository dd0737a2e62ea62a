"""Files on object storage for mmengine's file client, by fsspec."""
from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.core import url_to_fs
from mmengine.fileio import register_backend
from mmengine.fileio.backends import BaseStorageBackend, PetrelBackend, prefix_to_backends

from ..errors import FileError, MissingFileError, UserError, convert_errors

PROTOCOLS = ('s3', 'gs', 'gcs', 'az', 'abfs', 'hf', 'memory')
CACHE_VARIABLE = 'COLONNADE_CACHE'
#: package to install for each protocol
PACKAGES = {'s3': 'colonnade[object-storage]', 'gs': 'gcsfs', 'gcs': 'gcsfs', 'az': 'adlfs',
            'abfs': 'adlfs', 'hf': 'huggingface_hub'}  # yapf: disable
#: botocore's errors about credentials, and about connections
CREDENTIAL_ERRORS = ('NoCredentialsError', 'PartialCredentialsError', 'ProfileNotFound')
CONNECTION_ERRORS = ('EndpointConnectionError', 'ConnectTimeoutError', 'ReadTimeoutError',
                     'ConnectionClosedError', 'ClientConnectorError', 'HTTPClientError',
                     'FSTimeoutError')  # yapf: disable


class AccessError(PermissionError, FileError):
    """An error of a storage that denies access."""


class UnreachableError(ConnectionError, FileError):
    """An error of a storage that does not answer."""


def convert_storage_errors(url: str) -> AbstractContextManager[None]:
    """Return a context manager that turns errors of a storage into an OSError with the URL.

    Raises:
        UnreachableError: If the endpoint cannot be reached.
        MissingFileError: If the object or bucket does not exist.
        AccessError: If access is denied, or credentials are missing.
        FileError: If it cannot be read for another reason.
        UserError: If a package that reads this protocol is not installed.
    """
    return convert_errors(partial(_convert_error, url))


def _convert_error(url: str, error: Exception) -> UserError:
    if isinstance(error, ImportError):
        protocol = url.partition('://')[0].removeprefix('shards+')
        hint = f'run pip install {PACKAGES[protocol]!r}' if protocol in PACKAGES else \
            f'install the fsspec package for {protocol}://'
        return UserError(f'{url} cannot be read: a package is not installed ({error}): {hint}')
    name, text = type(error).__name__, ' '.join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f'{url} does not exist')
    if isinstance(error, PermissionError) or name in CREDENTIAL_ERRORS:
        return AccessError(f'{url}: access denied ({text or name}): check the credentials in '
                           'backend_args or, for s3://, in AWS_ACCESS_KEY_ID and '
                           'AWS_SECRET_ACCESS_KEY, or ~/.aws')
    if isinstance(error, (ConnectionError, TimeoutError)) or name in CONNECTION_ERRORS:
        return UnreachableError(f'{url}: the endpoint cannot be reached ({text or name}): for '
                                's3:// storage other than Amazon\'s, set AWS_ENDPOINT_URL')
    return FileError(f'{url} cannot be read: {name}: {text}')


def cache_folder() -> Path:
    """Return ``COLONNADE_CACHE``, or ``colonnade`` in the user's cache folder."""
    if CACHE_VARIABLE in os.environ:
        return Path(os.environ[CACHE_VARIABLE]).expanduser()
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'colonnade'


def _cache_file(url: str, version: str, fetch: Callable[[str], object]) -> Path:
    """Return the local copy of a remote file, fetched if this version is not in the cache."""
    digest = hashlib.sha256(f'{url}\n{version}'.encode()).hexdigest()[:32]
    path = cache_folder() / 'files' / digest / PurePosixPath(url).name
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix='.unfinished-', dir=path.parent)
    except OSError as error:
        raise FileError(f'the cache of remote files cannot be written ({error}): set '
                        f'{CACHE_VARIABLE} to another folder') from error
    os.close(handle)
    try:
        fetch(scratch)
        os.replace(scratch, path)
    finally:
        Path(scratch).unlink(missing_ok=True)
    return path


class FsspecBackend(BaseStorageBackend):
    """A file backend that reads and writes ``PROTOCOL://BUCKET/KEY`` by fsspec.

    Errors are those of :func:`convert_storage_errors`. Files that a library opens by path, such as
    annotations, are cached by URL and version.

    Args:
        **options: Options of fsspec's file system, such as ``endpoint_url``, ``key`` and ``secret``
            of S3. Defaults to fsspec's own settings and the environment.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    @contextmanager
    def find(self, url: Any) -> Iterator[tuple[Any, str]]:
        """Context manager that yields the file system of a URL, and the path in it.

        fsspec caches file systems by process: their connections do not survive forks.
        """
        with convert_storage_errors(str(url)):
            yield url_to_fs(str(url), **self.options)

    def get(self, filepath: Any) -> bytes:
        """Return the content of a file."""
        with self.find(filepath) as (files, path):
            return files.cat_file(path)

    def get_range(self, filepath: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from ``start`` to ``end``, which is excluded."""
        with self.find(filepath) as (files, path):
            return files.cat_file(path, start=start, end=end)

    def open_file(self, url: str) -> Any:
        """Return a file that is open for reading."""
        with self.find(url) as (files, path):
            return files.open(path, 'rb')

    def get_text(self, filepath: Any, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def put(self, obj: bytes, filepath: Any) -> None:
        with self.find(filepath) as (files, path):
            files.pipe_file(path, obj)

    def put_text(self, obj: str, filepath: Any, encoding: str = 'utf-8') -> None:
        self.put(obj.encode(encoding), filepath)

    def remove(self, filepath: Any) -> None:
        with self.find(filepath) as (files, path):
            files.rm_file(path)

    def exists(self, filepath: Any) -> bool:
        return self._get_type(filepath) is not None

    def isfile(self, filepath: Any) -> bool:
        return self._get_type(filepath) == 'file'

    def isdir(self, filepath: Any) -> bool:
        return self._get_type(filepath) == 'directory'

    def _get_type(self, filepath: Any) -> str | None:
        """Return "file", "directory" or None; fsspec's own predicates hide all errors."""
        try:
            with self.find(str(filepath).rstrip('/')) as (files, path):
                return files.info(path)['type']
        except FileNotFoundError:
            return None

    def join_path(self, filepath: Any, *filepaths: Any) -> str:
        return join_url(str(filepath), *map(str, filepaths))

    @contextmanager
    def get_local_path(self, filepath: Any) -> Iterator[str]:
        """Context manager that yields a local copy of a file, to be read only."""
        with self.find(filepath) as (files, path):
            version = str(files.ukey(path))
            local = _cache_file(str(filepath), version, partial(files.get_file, path))
        yield str(local)

    def list_dir_or_file(self, dir_path: Any, list_dir: bool = True, list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None,
                         recursive: bool = False) -> Iterator[str]:  # yapf: disable
        """Yield paths in a folder, relative to it, without hidden ones, as mmengine's backends."""
        with self.find(dir_path) as (files, path):
            entries = files.find(
                path, maxdepth=None if recursive else 1, withdirs=True, detail=True)
        start = path.rstrip('/') + '/'
        for name, info in entries.items():
            inner = name.rstrip('/').removeprefix(start)
            is_dir = info['type'] == 'directory'
            if name.rstrip('/') == start[:-1] or any(p.startswith('.') for p in inner.split('/')):
                continue
            if is_dir and list_dir or not is_dir and list_file and (suffix is None
                                                                    or inner.endswith(suffix)):
                yield inner


def join_url(path: str, *others: str) -> str:
    """Return the parts of a URL, joined by single slashes."""
    return '/'.join([path.rstrip('/'), *(other.strip('/') for other in others if other.strip('/'))])


def _register_fsspec() -> None:
    """Register fsspec for all protocols without another backend."""
    known = prefix_to_backends.copy()
    if find_spec('petrel_client') is None and known.get('s3') is PetrelBackend:
        del known['s3']
    free = [protocol for protocol in PROTOCOLS if protocol not in known]
    register_backend('fsspec', FsspecBackend, force=True, prefixes=free)


_register_fsspec()
