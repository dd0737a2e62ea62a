"""Where each file of a data set lies in its shards: an index that is found by bisection.

A folder of shards holds files in the layout of WebDataset: ``train-000000.tar`` and its like.
``paths.npy`` has the names of all files, sorted, as bytes. ``places.npy`` has for each a row of
shard, offset, bytes and CRC-32. ``shards.json`` has the shards with their sizes and checksums.

Arrays are mapped into memory: processes and workers of a machine share them.
"""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .file_access import Settings, exists, local_copy

MANIFEST, PATHS, PLACES = 'shards.json', 'paths.npy', 'places.npy'
FORMAT = 1
SHARD, OFFSET, LENGTH, CHECKSUM = range(4)  # columns of places


@dataclass(frozen=True)
class Place:
    """Where a file lies.

    Attributes:
        shard: Name of the shard.
        offset: Of the first byte.
        length: In bytes.
        checksum: CRC-32 of the content.
    """
    shard: str
    offset: int
    length: int
    checksum: int


class ShardIndex:
    """The files in a folder of shards.

    Args:
        folder: Path or URL.
        settings: Of fsspec.

    Raises:
        OSError: If its index cannot be read.
        ValueError: If it is damaged, of another format, or its parts do not belong together.
    """

    def __init__(self, folder: str, settings: Settings = None) -> None:
        self.folder, self.settings = folder, settings
        self.manifest = read_manifest(folder, settings)
        self.paths, self.places = (self._mapped(name) for name in (PATHS, PLACES))
        if not len(self.paths) == len(self.places) == self.manifest['files']:
            raise UserError(f'{folder}: {PATHS} has {len(self.paths)} files, {PLACES} '
                            f'{len(self.places)} and {MANIFEST} {self.manifest["files"]}: they do '
                            'not belong together, copy the folder again')
        if self.places.shape[1:] != (4, ) or self.places.dtype.kind not in 'iu' \
                or self.paths.dtype.kind != 'S' or self.paths.ndim != 1:
            raise UserError(f'{folder}: {PATHS} or {PLACES} is damaged: copy the folder again')

    def _mapped(self, name: str) -> np.ndarray:
        with local_copy(f'{self.folder}/{name}', self.settings) as local:
            try:
                return np.load(local, mmap_mode='r', allow_pickle=False)
            except OSError:
                raise
            except Exception as error:  # heads that are damaged lead numpy to errors of all kinds
                raise UserError(f'{self.folder}/{name} is damaged: {error}') from error

    def __len__(self) -> int:
        return len(self.paths)

    def find(self, path: str) -> Place | None:
        """The place of a file; None if it is in no shard.

        Args:
            path: Relative to the folder, with ``/``.
        """
        name = path.encode()
        at = int(np.searchsorted(self.paths, name))
        if at == len(self.paths) or self.paths[at] != name:
            return None
        shard, offset, length, checksum = self.places[at].tolist()
        if not 0 <= shard < len(self.manifest['shards']) or offset < 0 or length < 0:
            raise UserError(f'{self.folder}/{PLACES} is damaged: the place of {path} is '
                            f'{self.places[at].tolist()}')
        return Place(self.manifest['shards'][shard]['file'], offset, length, checksum)

    def below(self, folder: str) -> Iterator[str]:
        """The files in a folder and below, in their order.

        Args:
            folder: Relative, with ``/``; empty for all.
        """
        start = f'{folder.strip("/")}/'.encode() if folder.strip('/') else b''
        at = int(np.searchsorted(self.paths, start))
        while at < len(self.paths) and (name := bytes(self.paths[at])).startswith(start):
            yield name.decode()
            at += 1


def is_sharded(folder: str, settings: Settings = None) -> bool:
    """Whether a path or URL is a folder of shards."""
    return exists(f'{folder.rstrip("/")}/{MANIFEST}', settings)


def read_manifest(folder: str, settings: Settings = None) -> dict[str, Any]:
    """What ``shards.json`` says.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is of another format.
    """
    with local_copy(f'{folder}/{MANIFEST}', settings) as local:
        try:
            found = json.loads(Path(local).read_bytes())
        except (ValueError, RecursionError) as error:
            raise UserError(f'{folder}/{MANIFEST} is damaged: {error}') from error
    if not isinstance(found, dict) or found.get('format') != FORMAT:
        raise UserError(f'{folder}/{MANIFEST} is no index of shards of format {FORMAT}')
    shards, beside = found.get('shards'), found.get('beside')
    if type(found.get('files')) is not int or not isinstance(shards, list) or not all(
            isinstance(each, dict) and isinstance(each.get('sha256'), str)
            for each in shards) or not isinstance(beside, dict) or not all(
                isinstance(each, str) for each in beside.values()):
        raise UserError(f'{folder}/{MANIFEST} is damaged: it must have files, shards with file '
                        'and sha256, and beside')
    for name in (each.get('file') for each in shards):
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise UserError(f'{folder}/{MANIFEST}: shards must be files beside it, got {name!r}')
    return found
