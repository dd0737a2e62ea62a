"""Whether a folder of shards, or a copy of it on object storage, is what was written."""
from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from colonnade.common.errors import MissingFileError, UserError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.common.storage.file_access import exists, get_backend, is_remote
from colonnade.common.storage.object_storage import convert_storage_errors
from colonnade.common.storage.shard_index import MANIFEST, ShardIndex

CHUNK = 2**24  # bytes read at a time


@file_errors()
def verify_shards(folder: str) -> dict[str, Any]:
    """Compare all files in a folder of shards with the checksums of its manifest.

    Args:
        folder: Path or URL.

    Returns:
        The manifest.

    Raises:
        OSError: If a file cannot be read.
        ValueError: With all files that are missing or have another content.
    """
    folder = folder.rstrip('/')
    if not exists(f'{folder}/{MANIFEST}'):
        raise MissingFileError(f'{folder} is no folder of shards: it has no {MANIFEST}')
    manifest = ShardIndex(folder).manifest
    expected = {each['file']: each['sha256'] for each in manifest['shards']} | manifest['beside']
    faults = []
    for name, digest in expected.items():
        path = f'{folder}/{name}'
        if not exists(path):
            faults.append(f'{path} is missing')
        elif compute_digest(path) != digest:
            faults.append(f'{path} is not what was written: its checksum is another')
    if faults:
        raise UserError('\n'.join(faults))
    return manifest


def compute_digest(path: str) -> str:
    """SHA-256 of a file on this machine or on object storage."""
    if not is_remote(path):
        return compute_sha256(Path(path))
    digest = hashlib.sha256()
    with get_backend(path).open_file(path) as file, convert_storage_errors(path):
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
