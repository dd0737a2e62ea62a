"""SHA-256 of files, to tell whether two are the same."""
from __future__ import annotations

from colonnade.weights.checksums import sha256_of

__all__ = ['sha256_of']
