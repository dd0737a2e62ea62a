"""SHA-256 of files, to tell whether two are the same."""
from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import file_errors

BLOCK = 2**20  # bytes that are read at a time


@file_errors()
def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal.

    Raises:
        OSError: If it cannot be read.
    """
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
