"""Features on disk: computed once, and taken again only if nothing that they depend on changed."""
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
    """A folder of features that cannot be written or read."""


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/colonnade``, or ``~/.cache/colonnade``."""
    named = os.environ.get('XDG_CACHE_HOME', '')
    caches = Path(named) if os.path.isabs(named) else Path.home() / '.cache'
    return caches / 'colonnade'


class FeatureCache:
    """The features of images by one backbone under one set of settings.

    The folder is named by the hash of the settings, a file by the hash of its image's bytes. A file
    ends with the hash of both names and of its content. So a torn file, or one from elsewhere, is
    not taken. Files are written atomically: several processes may share a folder.

    Args:
        folder: Folder of all caches.
        settings: All that the features depend on, besides the image. Must be JSON.

    Attributes:
        key: Hash of the settings.
        folder: The folder of this key.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        text = json.dumps(self.settings, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.folder = folder / 'features' / self.key[:32]

    def path_of(self, image: str) -> Path:
        """The file with the features of an image, which its hash names."""
        return self.folder / f'{image}.npy'

    def read(self, image: str) -> np.ndarray | None:
        """The features of an image; None if there is no file, or not a whole one.

        Raises:
            CacheError: If there is a file that cannot be read.
        """
        try:
            content = self.path_of(image).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CacheError(f'features cannot be read: {error}') from error
        payload, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if digest != self._digest(image, payload):
            return None
        return np.load(io.BytesIO(payload), allow_pickle=False)

    def write(self, image: str, features: np.ndarray) -> None:
        """Keep the features of an image.

        Raises:
            CacheError: If they cannot be written.
        """
        buffer = io.BytesIO()
        np.save(buffer, features, allow_pickle=False)
        payload = buffer.getvalue()
        try:
            if not (self.folder / 'settings.json').exists():
                write_json(self.folder / 'settings.json', self.settings)
            with atomic_write(self.path_of(image)) as scratch:
                scratch.write_bytes(payload + self._digest(image, payload))
        except OSError as error:
            raise CacheError(f'features cannot be kept in {self.folder}: {error}. --cache names '
                             'another folder, --no-cache uses a temporary one') from error

    def _digest(self, image: str, payload: bytes) -> bytes:
        return hashlib.sha256(f'{self.key} {image} '.encode() + payload).digest()


def size_of(folder: Path) -> int:
    """Bytes of all features below a folder."""
    total = 0
    for path in folder.rglob('*.npy'):
        try:
            total += path.stat().st_size
        except OSError:  # somebody removed it
            continue
    return total
