"""Files in shards for mmengine's file client: datasets read them as from folders.

``shards:///data/coco`` is a local folder of shards, ``shards+s3://bucket/coco`` one on object
storage. Samplers and their order are those of the same files in folders, and so are losses and
metrics.
"""
from __future__ import annotations

import os
import posixpath
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from io import FileIO
from os import PathLike
from typing import Any

from mmengine.fileio import register_backend
from mmengine.fileio.backends import BaseStorageBackend

from ..errors import FileError, MissingFileError
from .file_access import Settings, exists, get_backend, local_copy
from .object_storage import PROTOCOLS, join_url
from .retrying_backend import read_with_retries
from .shard_index import Place, ShardIndex, has_shards

SCHEME = 'shards'
MAX_OPEN = 64  # local shards that a process keeps open


def sharded(folder: str) -> str:
    """Return the URL by which datasets read a folder of shards, which is a path or URL."""
    protocol, separator, rest = folder.partition('://')
    return f'{SCHEME}+{protocol}://{rest}' if separator else f'{SCHEME}://{os.path.abspath(folder)}'


def unsharded(url: str) -> str:
    """Return the path or URL in a folder of shards, given that of :func:`sharded`."""
    scheme, _, rest = url.partition('://')
    protocol = scheme.removeprefix(SCHEME).removeprefix('+')
    return f'{protocol}://{rest}' if protocol else rest


class ShardsBackend(BaseStorageBackend):
    """A file backend for shards; files in no shard are read from the folder of the shards."""

    def __init__(self, **options: Any) -> None:
        self.options: Settings = options or None
        self.indices: dict[str, ShardIndex] = {}  # by folder

    def find_index(self, path: str) -> tuple[ShardIndex, str]:
        """Return the index of the shards above a path, and the path relative to them."""
        protocol, _, plain = path.rpartition('://')
        start = f'{protocol}://' if protocol else ''
        parts = posixpath.normpath(plain).split('/')
        folders = [(start + '/'.join(parts[:end]), '/'.join(parts[end:]))
                   for end in range(len(parts), 0, -1) if any(parts[:end])]  # yapf: disable
        for folder, name in folders:
            if folder in self.indices:
                return self.indices[folder], name
        for folder, name in folders:
            if has_shards(folder, self.options):
                self.indices[folder] = ShardIndex(folder, self.options)
                return self.indices[folder], name
        raise MissingFileError(f'{path}: neither this path nor a parent folder contains shards '
                               '(shards.json, written by colonnade make-shards)')

    def get(self, filepath: Any) -> bytes:
        """Return the content of a file."""
        path = unsharded(str(filepath))
        index, name = self.find_index(path)
        place = index.find(name)
        if place is None:
            if not exists(path, self.options):
                raise MissingFileError(
                    f'{filepath} exists neither in the shards (files: {len(index)}) '
                    'nor next to them')
            return get_backend(path, self.options).get(path)
        return read_place(index.folder, place, name, self.options)

    def get_text(self, filepath: Any, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def exists(self, filepath: Any) -> bool:
        return self.isfile(filepath) or self.isdir(filepath)

    def isfile(self, filepath: Any) -> bool:
        path = unsharded(str(filepath))
        index, name = self.find_index(path)
        return index.find(name) is not None or get_backend(path, self.options).isfile(path)

    def isdir(self, filepath: Any) -> bool:
        path = unsharded(str(filepath))
        index, name = self.find_index(path)
        return any(index.below(name)) or get_backend(path, self.options).isdir(path)

    def join_path(self, filepath: Any, *filepaths: Any) -> str:
        return join_url(str(filepath), *map(str, filepaths))

    @contextmanager
    def get_local_path(self, filepath: Any) -> Iterator[str]:
        """Context manager that yields a local path of a file that is next to the shards."""
        path = unsharded(str(filepath))
        index, name = self.find_index(path)
        if index.find(name) is not None:
            raise FileError(f'{filepath} is in a shard and cannot be opened as a file')
        with local_copy(path, self.options) as local:
            yield local

    def list_dir_or_file(self, dir_path: Any, list_dir: bool = True, list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None,
                         recursive: bool = False) -> Iterator[str]:  # yapf: disable
        """Yield paths of files in shards, relative to a folder, without hidden ones."""
        index, folder = self.find_index(unsharded(str(dir_path)))
        start, listed = len(folder) + 1 if folder else 0, set()
        for name in index.below(folder):
            inner = name[start:].split('/')
            if any(part.startswith('.') for part in inner):
                continue
            parents = ['/'.join(inner[:end]) for end in range(1, len(inner))]
            if list_dir:
                new = [each for each in parents[:None if recursive else 1] if each not in listed]
                listed.update(new)
                yield from new
            if list_file and (recursive or not parents) and \
                    (suffix is None or name.endswith(suffix)):
                yield '/'.join(inner)


def read_place(folder: str, place: Place, name: str, settings: Settings = None) -> bytes:
    """Return the content of a file in a shard."""
    shard, end = f'{folder}/{place.shard}', place.offset + place.length
    if place.offset < 0 or place.length < 0:
        data = b''
    elif '://' in shard:
        storage = get_backend(shard, settings)
        data = storage.get_range(shard, place.offset, end) if place.length else b''
    else:
        data = read_with_retries(partial(_read_range, place), shard)
    if len(data) != place.length or zlib.crc32(data) != place.checksum:
        raise FileError(f'{shard} is damaged: {name} (bytes {place.offset} to {end}) '
                        f'does not match its checksum: copy or create the shards again')
    return data


def _read_range(place: Place, shard: str | PathLike[str]) -> bytes:
    """Return bytes of a local shard, or none if the numbers cannot be those of a file."""
    try:
        file = open_shard(str(shard))  # this reference keeps other threads from closing it
        return os.pread(file.fileno(), place.length, place.offset)
    except (ValueError, OverflowError, MemoryError):
        return b''
    except OSError:
        open_shard.cache_clear()  # an open file of a network disk stays stale
        raise


@lru_cache(MAX_OPEN)
def open_shard(shard: str) -> FileIO:
    """Return a local shard, which stays open while it is cached; forks may share it."""
    return FileIO(shard)


_PREFIXES = [SCHEME, *(f'{SCHEME}+{protocol}' for protocol in PROTOCOLS)]
register_backend(SCHEME, ShardsBackend, force=True, prefixes=_PREFIXES)
