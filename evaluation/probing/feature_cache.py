"""Features of frozen backbones on disk, reused until anything that they depend on changes."""
from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.common.atomic_files import atomic_write, write_json
from colonnade.common.errors import FileError

DIGEST_BYTES = hashlib.sha256().digest_size


class CacheError(FileError):
    """Cache folder that cannot be written or read."""


def get_default_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/colonnade``, or ``~/.cache/colonnade``."""
    folder = os.environ.get('XDG_CACHE_HOME', '')
    return (Path(folder) if os.path.isabs(folder) else Path.home() / '.cache') / 'colonnade'


class FeatureCache:
    """Cache of the features of images, for one backbone and its settings.

    The folder is named after the hash of the settings, and each file after the hash of its image.
    A file ends with the hash of both names and of its content, so truncated or exchanged files are
    ignored. Files are written atomically, so processes may share a folder.

    Args:
        folder: Folder of all caches.
        settings: Everything except the image that the features depend on, as JSON.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        text = json.dumps(self.settings, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.folder = folder / 'features' / self.key[:32]

    def get_path(self, image: str) -> Path:
        """Return the file of an image, given its hash."""
        return self.folder / f'{image}.npy'

    def read(self, image: str) -> np.ndarray | None:
        """Return the features of an image, or None if they are missing or damaged."""
        try:
            content = self.get_path(image).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f'cannot read features: {error}') from error
        payload, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if digest != self._compute_digest(image, payload):
            return None
        return np.load(io.BytesIO(payload), allow_pickle=False)

    def write(self, image: str, features: np.ndarray) -> None:
        """Write the features of an image."""
        buffer = io.BytesIO()
        np.save(buffer, features, allow_pickle=False)
        payload = buffer.getvalue()
        try:
            if not (self.folder / 'settings.json').exists():
                write_json(self.folder / 'settings.json', self.settings)
            with atomic_write(self.get_path(image)) as scratch:
                scratch.write_bytes(payload + self._compute_digest(image, payload))
        except OSError as error:
            raise CacheError(f'cannot write features to {self.folder}: {error}. Choose another '
                             '--cache, or pass --no-cache to use a temporary one') from error

    def _compute_digest(self, image: str, payload: bytes) -> bytes:
        return hashlib.sha256(f'{self.key} {image} '.encode() + payload).digest()


def compute_cache_size(folder: Path) -> int:
    """Return the number of bytes of all features in a folder."""
    total = 0
    for path in folder.rglob('*.npy'):
        try:
            total += path.stat().st_size
        except OSError:  # Another process removed it.
            continue
    return total
