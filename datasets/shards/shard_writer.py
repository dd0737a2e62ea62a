"""Writer of shards in WebDataset format."""
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


@dataclass
class ShardWriter:
    """Writer of samples to shards that records the locations of their files.

    Args:
        folder: Folder to write to.
        max_bytes: Size after which a new shard starts.
    """
    folder: Path
    max_bytes: int
    shards: list[str] = field(default_factory=list)
    locations: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    tar: tarfile.TarFile | None = None
    num_samples: int = 0

    def start(self, split: str) -> None:
        """Start the shards of a split."""
        self.close()
        self.split, self.index, self.keys = split, 0, set()

    def add(self, key: str, files: Mapping[str, tuple[str, bytes]], metadata: Any) -> None:
        """Write a sample.

        Args:
            key: Name of the sample. Dots, at which WebDataset starts a suffix, are replaced, and
                duplicates numbered.
            files: Suffix -> path in the dataset, and content.
            metadata: Content of ``KEY.json``.
        """
        if self.tar is None or self.tar.offset >= self.max_bytes:
            self.close()
            self.shards.append(f'{self.split}-{self.index:06}.tar')
            self.index += 1
            self.tar = tarfile.open(self.folder / self.shards[-1], 'x', format=tarfile.PAX_FORMAT)
        base = key = key.replace('.', '_')
        number = 1
        while key in self.keys:
            number += 1
            key = f'{base}_{number}'
        self.keys.add(key)
        for suffix, (path, content) in files.items():
            offset = self._append(self.tar, f'{key}.{suffix}', content)
            self.locations[path] = (len(self.shards) - 1, offset, len(content), zlib.crc32(content))
        self._append(self.tar, f'{key}.json', json.dumps(metadata, allow_nan=False).encode())
        self.num_samples += 1

    def _append(self, tar: tarfile.TarFile, name: str, content: bytes) -> int:
        """Add a file to a shard, and return the offset of its content."""
        header = tarfile.TarInfo(name)
        header.size = len(content)
        tar.addfile(header, BytesIO(content))
        return tar.offset - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def close(self) -> None:
        """Close the current shard."""
        if self.tar is not None:
            self.tar.close()
        self.tar = None

    def finish(self, copied: Mapping[str, str]) -> dict[str, Any]:
        """Write the index and the manifest, after reading all files again.

        Args:
            copied: Relative path -> SHA-256 of the files next to the shards.

        Returns:
            The manifest.

        Raises:
            OSError: If a file cannot be written, or has other content than was written.
        """
        self.close()
        names = sorted(path.encode() for path in self.locations)
        rows = [self.locations[name.decode()] for name in names]
        locations = np.array(rows, np.int64).reshape(-1, CHECKSUM + 1)
        np.save(self.folder / PATHS, np.array(names, dtype=np.bytes_))
        np.save(self.folder / PLACES, locations)
        shards = [self._describe_shard(i, names, locations) for i in range(len(self.shards))]
        index = {name: compute_sha256(self.folder / name) for name in (PATHS, PLACES)}
        manifest = dict(
            format=FORMAT,
            samples=self.num_samples,
            files=len(names),
            bytes=int(locations[:, LENGTH].sum()),
            shards=shards,
            beside={
                **copied,
                **index
            })
        write_json(self.folder / MANIFEST, manifest)
        return manifest

    def _describe_shard(self, number: int, names: Sequence[bytes],
                        locations: np.ndarray) -> dict[str, Any]:
        """Return name, size and SHA-256 of a shard, after comparing its files with the index."""
        path = self.folder / self.shards[number]
        rows = np.flatnonzero(locations[:, SHARD] == number)
        with open(path, 'rb') as file:
            for row in rows[np.argsort(locations[rows, OFFSET])]:
                _, offset, length, checksum = locations[row].tolist()
                file.seek(offset)
                if zlib.crc32(file.read(length)) != checksum:
                    raise FileError(f'{path}: {names[row].decode()} differs from what was written: '
                                    'check the disk for errors')
        return dict(file=path.name, files=len(rows), bytes=path.stat().st_size,
                    sha256=compute_sha256(path))  # yapf: disable
