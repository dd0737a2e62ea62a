"""Files into shards in the layout of WebDataset, and a check of what was written."""
from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.atomic_files import write_json
from colonnade.common.errors import FileError
from colonnade.common.hashing import compute_sha256
from colonnade.common.storage.shard_index import (CHECKSUM, FORMAT, LENGTH, MANIFEST, OFFSET, PATHS,
                                                  PLACES, SHARD)

BLOCK = tarfile.BLOCKSIZE


@dataclass
class ShardWriter:
    """Writes samples into the shards of one part of a data set, and notes where their files lie.

    Args:
        folder: To write to.
        most: Bytes after which a shard is full.
    """
    folder: Path
    most: int
    shards: list[str] = field(default_factory=list)
    places: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    tar: tarfile.TarFile | None = None
    samples: int = 0

    def start(self, part: str) -> None:
        """Begin the shards of a part, such as ``train``."""
        self.close()
        self.part, self.number, self.keys = part, 0, set()

    def add(self, key: str, files: Mapping[str, tuple[str, bytes]], about: Any) -> None:
        """Write a sample: files of one name that differ in their suffixes.

        Args:
            key: The sample's name, made unique and free of dots, which WebDataset takes for the
                start of a suffix.
            files: Suffix to path of a file in the data set and its content.
            about: What is known of the sample, for ``KEY.json``.
        """
        if self.tar is None or self.tar.offset >= self.most:
            self._next_shard()
        key = self._own_key(key)
        for suffix, (path, content) in files.items():
            self.places[path] = (len(self.shards) - 1, self._append(f'{key}.{suffix}', content),
                                 len(content), zlib.crc32(content))  # yapf: disable
        self._append(f'{key}.json', json.dumps(about, allow_nan=False).encode())
        self.samples += 1

    def _own_key(self, key: str) -> str:
        plain = unique = key.replace('.', '_')
        number = 1
        while unique in self.keys:
            number += 1
            unique = f'{plain}_{number}'
        self.keys.add(unique)
        return unique

    def _append(self, name: str, content: bytes) -> int:
        """Add a file to the open shard; returns the offset of its content."""
        assert self.tar is not None
        header = tarfile.TarInfo(name)
        header.size = len(content)
        self.tar.addfile(header, BytesIO(content))
        return self.tar.offset - -(-len(content) // BLOCK) * BLOCK

    def _next_shard(self) -> None:
        self.close()
        self.shards.append(f'{self.part}-{self.number:06}.tar')
        self.number += 1
        self.tar = tarfile.open(self.folder / self.shards[-1], 'x', format=tarfile.PAX_FORMAT)

    def close(self) -> None:
        """End the open shard."""
        if self.tar is not None:
            self.tar.close()
        self.tar = None

    def finish(self, copied: Mapping[str, str]) -> dict[str, Any]:
        """Write the index and the manifest of all that was added, and read it again.

        Args:
            copied: SHA-256 of the files beside the shards.

        Returns:
            The manifest.

        Raises:
            OSError: If what was written is not what was read, or cannot be written.
        """
        self.close()
        names = sorted(path.encode() for path in self.places)
        rows = [self.places[name.decode()] for name in names]
        places = np.array(rows, np.int64).reshape(-1, CHECKSUM + 1)
        np.save(self.folder / PATHS, np.array(names, dtype=np.bytes_))
        np.save(self.folder / PLACES, places)
        shards = [self._described(number, names, places) for number in range(len(self.shards))]
        index = {name: compute_sha256(self.folder / name) for name in (PATHS, PLACES)}
        manifest = dict(
            format=FORMAT,
            samples=self.samples,
            files=len(names),
            bytes=int(places[:, LENGTH].sum()),
            shards=shards,
            beside={
                **copied,
                **index
            })
        write_json(self.folder / MANIFEST, manifest)
        return manifest

    def _described(self, number: int, names: Sequence[bytes], places: np.ndarray) -> dict[str, Any]:
        """Name, bytes and SHA-256 of a shard, whose files are compared with the index.

        Raises:
            OSError: If a file is not what was written.
        """
        path = self.folder / self.shards[number]
        rows = np.flatnonzero(places[:, SHARD] == number)
        with open(path, 'rb') as file:
            for row in rows[np.argsort(places[rows, OFFSET])]:
                _, offset, length, checksum = places[row].tolist()
                file.seek(offset)
                if zlib.crc32(file.read(length)) != checksum:
                    raise FileError(f'{path}: {names[row].decode()} is not what was written there: '
                                    'is the disk damaged?')
        return dict(file=path.name, files=len(rows), bytes=path.stat().st_size,
                    sha256=compute_sha256(path))  # yapf: disable
