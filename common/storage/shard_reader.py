"""Files in shards for mmengine's file client: data sets read them as from folders.

``shards:///data/coco`` is a folder of shards on this machine, ``shards+s3://bucket/coco`` one on
object storage. Files are found by an index and read by their ranges. Data sets, samplers and their
order are those of the same files in folders, and so are losses and metrics.
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
from .file_access import Settings, backend_of, exists, local_copy
from .object_storage import PROTOCOLS, join_url
from .retrying_backend import patiently
from .shard_index import Place, ShardIndex, is_sharded

SCHEME = 'shards'
MOST_OPEN = 64  # shards on this machine that a process keeps open


def sharded(folder: str) -> str:
    """The URL by which data sets read a folder of shards.

    Args:
        folder: Path or URL of the folder.
    """
    protocol, found, rest = folder.partition('://')
    return f'{SCHEME}+{protocol}://{rest}' if found else f'{SCHEME}://{os.path.abspath(folder)}'


def unsharded(url: str) -> str:
    """The path or URL below which a URL of shards lies: that of :func:`sharded` without it."""
    scheme, _, rest = url.partition('://')
    protocol = scheme.removeprefix(SCHEME).removeprefix('+')
    return f'{protocol}://{rest}' if protocol else rest


class ShardsBackend(BaseStorageBackend):
    """Reads files in shards; what is in no shard is read from the folder that they lie in.

    Args:
        **options: Of fsspec, where shards are on object storage.
    """

    def __init__(self, **options: Any) -> None:
        self.options: Settings = options or None
        self.indices: dict[str, ShardIndex] = {}  # by their folders

    def index_of(self, path: str) -> tuple[ShardIndex, str]:
        """The index above a path, and the rest of the path.

        Raises:
            FileNotFoundError: If there are no shards.
            OSError: If storage does not answer.
        """
        protocol, _, plain = path.rpartition('://')
        start = f'{protocol}://' if protocol else ''
        parts = posixpath.normpath(plain).split('/')
        places = [(start + '/'.join(parts[:end]), '/'.join(parts[end:]))
                  for end in range(len(parts), 0, -1) if any(parts[:end])]  # yapf: disable
        for folder, name in places:
            if folder in self.indices:
                return self.indices[folder], name
        for folder, name in places:
            if is_sharded(folder, self.options):
                self.indices[folder] = ShardIndex(folder, self.options)
                return self.indices[folder], name
        raise MissingFileError(f'{path}: neither it nor a folder above has shards '
                               '(shards.json, which colonnade make_shards writes)')

    def get(self, filepath: Any) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: If it is neither in a shard nor in the folder.
            OSError: If it cannot be read, or is not what was written.
        """
        path = unsharded(str(filepath))
        index, name = self.index_of(path)
        place = index.find(name)
        if place is None:
            if not exists(path, self.options):
                raise MissingFileError(f'{filepath} does not exist: neither in the {len(index)} '
                                       f'files of the shards nor beside them')
            return backend_of(path, self.options).get(path)
        return read_place(index.folder, place, name, self.options)

    def get_text(self, filepath: Any, encoding: str = 'utf-8') -> str:
        """The content of a file, decoded."""
        return self.get(filepath).decode(encoding)

    def exists(self, filepath: Any) -> bool:
        """Whether there is a file or folder."""
        return self.isfile(filepath) or self.isdir(filepath)

    def isfile(self, filepath: Any) -> bool:
        """Whether there is a file."""
        path = unsharded(str(filepath))
        index, name = self.index_of(path)
        return index.find(name) is not None or backend_of(path, self.options).isfile(path)

    def isdir(self, filepath: Any) -> bool:
        """Whether there is a folder."""
        path = unsharded(str(filepath))
        index, name = self.index_of(path)
        is_sharded_one = next(index.below(name), None) is not None
        return is_sharded_one or backend_of(path, self.options).isdir(path)

    def join_path(self, filepath: Any, *filepaths: Any) -> str:
        """A path below another."""
        return join_url(str(filepath), *map(str, filepaths))

    @contextmanager
    def get_local_path(self, filepath: Any) -> Iterator[str]:
        """While open, a path on this machine to a file that lies beside the shards."""
        path = unsharded(str(filepath))
        index, name = self.index_of(path)
        if index.find(name) is not None:
            raise FileError(f'{filepath} is in a shard, and cannot be opened as a file')
        with local_copy(path, self.options) as local:
            yield local

    def list_dir_or_file(self,
                         dir_path: Any,
                         list_dir: bool = True,
                         list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None,
                         recursive: bool = False) -> Iterator[str]:
        """Paths of files in shards, relative to a folder; hidden ones are left out."""
        index, folder = self.index_of(unsharded(str(dir_path)))
        start, seen = len(folder) + 1 if folder else 0, set()
        for name in index.below(folder):
            inner = name[start:].split('/')
            if any(part.startswith('.') for part in inner):
                continue
            above = ['/'.join(inner[:end]) for end in range(1, len(inner))]
            if list_dir and (new := [each for each in above[:None if recursive else 1]
                                     if each not in seen]):  # yapf: disable
                seen.update(new)
                yield from new
            if list_file and (recursive or not above) and (suffix is None or name.endswith(suffix)):
                yield '/'.join(inner)


def read_place(folder: str, place: Place, name: str, settings: Settings = None) -> bytes:
    """The content of a file in a shard.

    Args:
        folder: Of the shards.
        place: Of the file.
        name: Of the file, for messages.
        settings: Of fsspec.

    Raises:
        OSError: If it cannot be read, in several attempts, or is not what was written.
    """
    shard, end = f'{folder}/{place.shard}', place.offset + place.length
    if place.offset < 0 or place.length < 0:
        found = b''
    elif '://' in shard:
        storage = backend_of(shard, settings)
        found = storage.get_range(shard, place.offset, end) if place.length else b''
    else:
        found = patiently(partial(read_range, place), shard)
    if len(found) != place.length or zlib.crc32(found) != place.checksum:
        raise FileError(f'{shard} is damaged: {name} is not what was written there (bytes '
                        f'{place.offset} to {end}). Copy or make the shards again')
    return found


def read_range(place: Place, shard: str | PathLike[str]) -> bytes:
    """Bytes of a shard on this machine; none if no file can have them.

    Raises:
        OSError: If they cannot be read; then the next attempt opens the shard again.
    """
    try:
        file = open_shard(str(shard))  # held while read: another thread may make it be forgotten
        return os.pread(file.fileno(), place.length, place.offset)
    except (ValueError, OverflowError, MemoryError):  # of numbers that no file has
        return b''
    except OSError:
        open_shard.cache_clear()  # a file of a network disk stays stale
        raise


@lru_cache(MOST_OPEN)
def open_shard(shard: str) -> FileIO:
    """A shard on this machine, which stays open until it is forgotten; forks may share it."""
    return FileIO(shard)


def register_shards() -> None:
    """Let mmengine's file client read ``shards://``, ``shards+s3://`` and so on."""
    prefixes = [SCHEME, *(f'{SCHEME}+{protocol}' for protocol in PROTOCOLS)]
    register_backend(SCHEME, ShardsBackend, force=True, prefixes=prefixes)


register_shards()
