"""Index of the files of a dataset in its shards, searched by bisection.

A folder of shards holds tar files as WebDataset writes them, such as ``train-000000.tar``.
``paths.npy`` has the names of all files, sorted, as bytes. ``places.npy`` has a row of shard,
offset, bytes and CRC-32 for each. ``shards.json`` has the shards with their sizes and checksums.

Arrays are mapped into memory, which the processes and workers of a host share.
"""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError, convert_errors
from .file_access import Settings, exists, local_copy

MANIFEST, PATHS, PLACES = 'shards.json', 'paths.npy', 'places.npy'
FORMAT = 1
SHARD, OFFSET, LENGTH, CHECKSUM = range(4)  # columns of places


@dataclass(frozen=True)
class Place:
    """Location of a file."""
    shard: str  # name of the shard
    offset: int  # offset of the first byte
    length: int  # number of bytes
    checksum: int  # CRC-32 of the content


class ShardIndex:
    """The files in a folder of shards."""

    def __init__(self, folder: str, settings: Settings = None) -> None:
        self.folder, self.settings = folder, settings
        self.manifest = read_manifest(folder, settings)
        self.paths, self.places = (self._map_array(name) for name in (PATHS, PLACES))
        if not len(self.paths) == len(self.places) == self.manifest['files']:
            raise UserError(f'{folder}: the numbers of files differ: {len(self.paths)} in {PATHS}, '
                            f'{len(self.places)} in {PLACES}, {self.manifest["files"]} in '
                            f'{MANIFEST}: copy the folder again')
        if self.places.shape[1:] != (4, ) or self.places.dtype.kind not in 'iu' \
                or self.paths.dtype.kind != 'S' or self.paths.ndim != 1:
            raise UserError(f'{folder}: {PATHS} or {PLACES} is damaged: copy the folder again')

    def _map_array(self, name: str) -> np.ndarray:
        path = f'{self.folder}/{name}'
        with local_copy(path, self.settings) as local, convert_errors(
                lambda error: UserError(f'{path} is damaged: {error}'), OSError):
            return np.load(local, mmap_mode='r', allow_pickle=False)

    def __len__(self) -> int:
        return len(self.paths)

    def find(self, path: str) -> Place | None:
        """Return the location of a file, or None if it is in no shard."""
        name = path.encode()
        row = int(np.searchsorted(self.paths, name))
        if row == len(self.paths) or self.paths[row] != name:
            return None
        shard, offset, length, checksum = self.places[row].tolist()
        if not 0 <= shard < len(self.manifest['shards']) or offset < 0 or length < 0:
            raise UserError(f'{self.folder}/{PLACES} is damaged: the location of {path} is '
                            f'{self.places[row].tolist()}')
        return Place(self.manifest['shards'][shard]['file'], offset, length, checksum)

    def below(self, folder: str) -> Iterator[str]:
        """Yield the files in a folder and below, sorted; ``folder`` is empty for all."""
        start = f'{folder.strip("/")}/'.encode() if folder.strip('/') else b''
        row = int(np.searchsorted(self.paths, start))
        while row < len(self.paths) and (name := bytes(self.paths[row])).startswith(start):
            yield name.decode()
            row += 1


def has_shards(folder: str, settings: Settings = None) -> bool:
    """Return True if a path or URL is a folder of shards."""
    return exists(f'{folder.rstrip("/")}/{MANIFEST}', settings)


def read_manifest(folder: str, settings: Settings = None) -> dict[str, Any]:
    """Return the content of ``shards.json``."""
    with local_copy(f'{folder}/{MANIFEST}', settings) as local:
        try:
            manifest = json.loads(Path(local).read_bytes())
        except (ValueError, RecursionError) as error:
            raise UserError(f'{folder}/{MANIFEST} is damaged: {error}') from error
    if not isinstance(manifest, dict) or manifest.get('format') != FORMAT:
        raise UserError(f'{folder}/{MANIFEST} is not a shard index of format {FORMAT}')
    shards, others = manifest.get('shards'), manifest.get('beside')
    if type(manifest.get('files')) is not int or not isinstance(shards, list) or not all(
            isinstance(each, dict) and isinstance(each.get('sha256'), str)
            for each in shards) or not isinstance(others, dict) or not all(
                isinstance(each, str) for each in others.values()):
        raise UserError(
            f'{folder}/{MANIFEST} is damaged: expected the keys "files", "shards" (each '
            'with "file" and "sha256") and "beside"')
    for name in (each.get('file') for each in shards):
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise UserError(f'{folder}/{MANIFEST}: shards must be files next to it, got {name!r}')
    return manifest
