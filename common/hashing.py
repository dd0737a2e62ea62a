"""SHA-256 of files."""
from __future__ import annotations

import hashlib
from pathlib import Path

from .errors import file_errors


@file_errors()
def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()
