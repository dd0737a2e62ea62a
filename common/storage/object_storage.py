"""Files on object storage for mmengine's file client, by fsspec."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

from fsspec.core import url_to_fs
from mmengine.fileio import register_backend
from mmengine.fileio.backends import BaseStorageBackend, PetrelBackend, prefix_to_backends

from .cache import cached
from .errors import naming

PROTOCOLS = ('s3', 'gs', 'gcs', 'az', 'abfs', 'hf', 'memory')


class FsspecBackend(BaseStorageBackend):
    """Reads and writes ``PROTOCOL://BUCKET/KEY`` as fsspec does.

    Errors are those of :func:`~.errors.naming`. Files that a library needs on this machine, such as
    annotations, are kept in a cache, by URL and version.

    Args:
        **options: Of fsspec's file system, such as ``endpoint_url``, ``key`` and ``secret`` of S3.
            Without them, fsspec's own settings and the environment count.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def find(self, url: str) -> tuple[Any, str]:
        """The file system of a URL, and the path in it.

        File systems are kept by fsspec, process by process: their connections do not survive forks.

        Raises:
            ValueError: If a package that reads this protocol is not installed.
        """
        with naming(url):
            return url_to_fs(url, **self.options)

    def get(self, filepath: Any) -> bytes:
        """The content of a file."""
        files, path = self.find(str(filepath))
        with naming(str(filepath)):
            return files.cat_file(path)

    def get_range(self, filepath: str, start: int, end: int) -> bytes:
        """The bytes of a file from ``start`` on, before ``end``."""
        files, path = self.find(filepath)
        with naming(filepath):
            return files.cat_file(path, start=start, end=end)

    def opened(self, url: str) -> Any:
        """A file, open to be read piece by piece."""
        files, path = self.find(url)
        with naming(url):
            return files.open(path, 'rb')

    def get_text(self, filepath: Any, encoding: str = 'utf-8') -> str:
        """The content of a file, decoded."""
        return self.get(filepath).decode(encoding)

    def put(self, obj: bytes, filepath: Any) -> None:
        """Write a file."""
        files, path = self.find(str(filepath))
        with naming(str(filepath)):
            files.pipe_file(path, obj)

    def put_text(self, obj: str, filepath: Any, encoding: str = 'utf-8') -> None:
        """Write a file of text."""
        self.put(obj.encode(encoding), filepath)

    def remove(self, filepath: Any) -> None:
        """Delete a file."""
        files, path = self.find(str(filepath))
        with naming(str(filepath)):
            files.rm_file(path)

    def exists(self, filepath: Any) -> bool:
        """Whether there is a file or folder."""
        return self._asked('exists', filepath)

    def isfile(self, filepath: Any) -> bool:
        """Whether there is a file."""
        return self._asked('isfile', filepath)

    def isdir(self, filepath: Any) -> bool:
        """Whether there is a folder."""
        return self._asked('isdir', filepath)

    def _asked(self, question: str, filepath: Any) -> bool:
        """What ``info`` tells; fsspec's own answers take each error for a no."""
        files, path = self.find(str(filepath).rstrip('/'))
        try:
            with naming(str(filepath)):
                kind = files.info(path)['type']
        except FileNotFoundError:
            return False
        return question == 'exists' or kind == dict(isfile='file', isdir='directory')[question]

    def join_path(self, filepath: Any, *filepaths: Any) -> str:
        """A path below another."""
        return join_url(str(filepath), *map(str, filepaths))

    @contextmanager
    def get_local_path(self, filepath: Any) -> Iterator[str]:
        """While open, a copy of a file on this machine, which is to be read alone."""
        files, path = self.find(str(filepath))
        with naming(str(filepath)):
            version = files.ukey(path)
        with naming(str(filepath)):
            local = cached(str(filepath), str(version), partial(files.get_file, path))
        yield str(local)

    def list_dir_or_file(self,
                         dir_path: Any,
                         list_dir: bool = True,
                         list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None,
                         recursive: bool = False) -> Iterator[str]:
        """Paths in a folder, relative to it; hidden ones are left out, as mmengine does."""
        url = str(dir_path)
        files, path = self.find(url)
        with naming(url):
            found = files.find(path, maxdepth=None if recursive else 1, withdirs=True, detail=True)
        start = path.rstrip('/') + '/'
        for name, about in found.items():
            inner = name.rstrip('/').removeprefix(start)
            is_dir = about['type'] == 'directory'
            if name.rstrip('/') == start[:-1] or any(p.startswith('.') for p in inner.split('/')):
                continue
            if is_dir and list_dir or not is_dir and list_file and (suffix is None
                                                                    or inner.endswith(suffix)):
                yield inner


def join_url(path: str, *others: str) -> str:
    """Parts of a URL with one slash between them."""
    return '/'.join([path.rstrip('/'), *(other.strip('/') for other in others if other.strip('/'))])


def register_fsspec() -> None:
    """Let mmengine's file client read these protocols by fsspec.

    Other readers of them stay, but for that of ``s3://`` for Petrel, if its package is missing.
    """
    known = prefix_to_backends.copy()
    if find_spec('petrel_client') is None and known.get('s3') is PetrelBackend:
        del known['s3']
    free = [protocol for protocol in PROTOCOLS if protocol not in known]
    register_backend('fsspec', FsspecBackend, force=True, prefixes=free)


register_fsspec()
